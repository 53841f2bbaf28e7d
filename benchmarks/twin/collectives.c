/* Collectives timed and printed as OSU micro-benchmarks 7.5 do: smpicc -O1 collectives.c -o collectives
 *   collectives OPERATION,OPERATION,... BYTES...
 * BYTES of the whole buffer, the gathered result or the reduced vector. A simulated repetition is as
 * long as the next, so there is one, after a call that is not counted. p2p is half of a ping-pong of ranks 0 and 1. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ALLREDUCE, ALLGATHER, REDUCE_SCATTER, ALLTOALL, BROADCAST, P2P, OPERATIONS };
static const char* const names[OPERATIONS]  = {"allreduce", "allgather", "reduce_scatter", "all_to_all", "broadcast", "p2p"};
static const char* const titles[OPERATIONS] = {"Allreduce", "Allgather", "Reduce_scatter", "All-to-All Personalized Exchange",
                                               "Broadcast", ""};

/* sums take no simulated time, and real time that nobody looks at */
static void no_sum(void* in, void* out, int* n, MPI_Datatype* type) {}

static void call(int what, void* out, void* in, long m, int rank, int p, int* counts, MPI_Op sum)
{
  int items = (int)(m / 4), each = items / p;
  switch (what) {
    case ALLREDUCE:
      MPI_Allreduce(out, in, items, MPI_FLOAT, sum, MPI_COMM_WORLD);
      break;
    case ALLGATHER:
      MPI_Allgather(out, each, MPI_FLOAT, in, each, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    case REDUCE_SCATTER:
      for (int k = 0; k < p; k++)
        counts[k] = each;
      MPI_Reduce_scatter(out, in, counts, MPI_FLOAT, sum, MPI_COMM_WORLD);
      break;
    case ALLTOALL:
      MPI_Alltoall(out, each, MPI_FLOAT, in, each, MPI_FLOAT, MPI_COMM_WORLD);
      break;
    case P2P: /* there and back, between the first two ranks */
      if (rank < 2)
        for (int k = 0; k < 2; k++)
          if (rank == k)
            MPI_Send(out, items, MPI_FLOAT, 1 - rank, 1, MPI_COMM_WORLD);
          else
            MPI_Recv(in, items, MPI_FLOAT, 1 - rank, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
      break;
    default:
      MPI_Bcast(out, items, MPI_FLOAT, 0, MPI_COMM_WORLD);
  }
}

int main(int argc, char** argv)
{
  int rank, p;
  long most = 4;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &p);
  MPI_Op sum;
  MPI_Op_create(no_sum, 1, &sum);
  for (int k = 2; k < argc; k++)
    if (atol(argv[k]) > most)
      most = atol(argv[k]);
  char* out     = SMPI_SHARED_MALLOC(most);
  char* in      = SMPI_SHARED_MALLOC(most);
  int* counts   = malloc(sizeof(int) * p);
  double* times = malloc(sizeof(double) * p);
  char* asked   = argc > 2 ? strdup(argv[1]) : NULL;
  for (char* name = asked; name;) {
    char* next = strchr(name, ',');
    int what   = 0;
    if (next)
      *next++ = 0;
    while (what < OPERATIONS && strcmp(name, names[what]))
      what++;
    if (what == OPERATIONS) {
      if (!rank)
        fprintf(stderr, "unknown operation %s\n", name);
      MPI_Abort(MPI_COMM_WORLD, 2);
    }
    if (!rank)
      printf("\n# OSU MPI %s%sLatency Test v7.5\n# Datatype: MPI_FLOAT.\n"
             "# Size       Avg Latency(us)   Min Latency(us)   Max Latency(us)  Iterations\n",
             titles[what], *titles[what] ? " " : "");
    call(what, out, in, atol(argv[2]), rank, p, counts, sum);
    for (int k = 2; k < argc; k++) {
      long m = atol(argv[k]);
      double mean = 0, least, longest;
      MPI_Barrier(MPI_COMM_WORLD);
      double t = MPI_Wtime();
      call(what, out, in, m, rank, p, counts, sum);
      t = (MPI_Wtime() - t) / (what == P2P ? 2 : 1);
      MPI_Gather(&t, 1, MPI_DOUBLE, times, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
      if (rank)
        continue;
      least = longest = times[0];
      for (int i = 0; i < p; i++) {
        mean += what == P2P ? times[0] / p : times[i] / p;
        least   = times[i] < least ? times[i] : least;
        longest = times[i] > longest ? times[i] : longest;
      }
      printf("%-10ld%18.2f%18.2f%18.2f%12d\n", what == ALLGATHER || what == ALLTOALL ? m / p : m, mean * 1e6,
             least * 1e6, longest * 1e6, 1);
      fflush(stdout);
    }
    name = next;
  }
  SMPI_SHARED_FREE(out);
  SMPI_SHARED_FREE(in);
  free(counts);
  free(times);
  free(asked);
  MPI_Finalize();
  return 0;
}
