/* One training iteration, played: smpicc -O1 iteration.c -o iteration -lm
 *   iteration FILE
 * A line of FILE is a step of every rank:
 *   compute SECONDS
 *   OPERATION BYTES GROUP_SIZE STRIDE GROUPS INNER GRID...   (a Message of calib/oracle/layout/traffic.py)
 * or, of a pipeline, whose rank i is stage i: "pipeline MICRO_BATCHES", then a line for each stage,
 *   stage FORWARD_SECONDS BACKWARD_SECONDS BYTES_TO_THE_NEXT
 * Prints the seconds of the slowest rank. */
#include <mpi.h>
#include <smpi/smpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_STEPS = 65536, MOST_GROUPS = 64, MOST_DIMENSIONS = 3 };
typedef struct {
  char what[32];
  double seconds, backward;
  long nbytes;
  int size, stride, groups, inner, grid[MOST_DIMENSIONS];
} Step;
typedef struct {
  int size, stride, groups;
  MPI_Comm comm;
} Group;

static void no_sum(void* in, void* out, int* n, MPI_Datatype* type) {}

static int read_steps(const char* path, Step* steps)
{
  char line[512];
  int n       = 0;
  FILE* file  = fopen(path, "r");
  while (file && n < MOST_STEPS && fgets(line, sizeof line, file)) {
    Step s = {.grid = {1, 1, 1}};
    if (sscanf(line, "compute %lf", &s.seconds) == 1)
      strcpy(s.what, "compute");
    else if (sscanf(line, "pipeline %d", &s.size) == 1)
      strcpy(s.what, "pipeline");
    else if (sscanf(line, "stage %lf %lf %ld", &s.seconds, &s.backward, &s.nbytes) == 3)
      strcpy(s.what, "stage");
    else if (sscanf(line, "%31s %ld %d %d %d %d %d %d %d", s.what, &s.nbytes, &s.size, &s.stride, &s.groups, &s.inner,
                    &s.grid[0], &s.grid[1], &s.grid[2]) < 6) {
      fprintf(stderr, "not a step: %s", line);
      MPI_Abort(MPI_COMM_WORLD, 2);
    }
    steps[n++] = s;
  }
  if (file)
    fclose(file);
  return n;
}

/* groups of `size` ranks that are `stride` apart, as microbench/groups.py orders them */
static MPI_Comm group_of(int rank, int size, int stride, int groups, Group* known, int* n)
{
  for (int k = 0; k < *n; k++)
    if (known[k].size == size && known[k].stride == stride && known[k].groups == groups)
      return known[k].comm;
  int block = size * stride, index = rank / block * stride + rank % stride;
  Group made = {size, stride, groups, MPI_COMM_NULL};
  MPI_Comm_split(MPI_COMM_WORLD, index < groups ? index : MPI_UNDEFINED, rank, &made.comm);
  known[(*n)++] = made;
  return made.comm;
}

/* all messages at once: to both neighbours in every dimension, none around the ends */
static void halo(const Step* s, char* out, char* in, MPI_Comm comm)
{
  int rank, n = 0, below = s->size;
  MPI_Request requests[4 * MOST_DIMENSIONS];
  MPI_Comm_rank(comm, &rank);
  for (int d = 0; d < MOST_DIMENSIONS; d++) {
    below /= s->grid[d];
    int at = rank / below % s->grid[d];
    for (int way = -1; way < 2; way += 2) {
      if (at + way < 0 || at + way >= s->grid[d])
        continue;
      MPI_Irecv(in, (int)s->nbytes, MPI_BYTE, rank + way * below, d, comm, &requests[n++]);
      MPI_Isend(out, (int)s->nbytes, MPI_BYTE, rank + way * below, d, comm, &requests[n++]);
    }
  }
  MPI_Waitall(n, requests, MPI_STATUSES_IGNORE);
}

static void send(const Step* s, char* out, char* in, MPI_Comm comm, MPI_Comm leaders, MPI_Op sum)
{
  int items = (int)(s->nbytes / 4), each = items / s->size;
  if (!strcmp(s->what, "allreduce"))
    MPI_Allreduce(out, in, items, MPI_FLOAT, sum, comm);
  else if (!strcmp(s->what, "allgather"))
    MPI_Allgather(out, each, MPI_FLOAT, in, each, MPI_FLOAT, comm);
  else if (!strcmp(s->what, "reduce_scatter"))
    MPI_Reduce_scatter_block(out, in, each, MPI_FLOAT, sum, comm);
  else if (!strcmp(s->what, "all_to_all"))
    MPI_Alltoall(out, each, MPI_FLOAT, in, each, MPI_FLOAT, comm);
  else if (!strcmp(s->what, "broadcast"))
    MPI_Bcast(out, items, MPI_FLOAT, 0, comm);
  else if (!strcmp(s->what, "halo"))
    halo(s, out, in, comm);
  else if (!strcmp(s->what, "hierarchical_allreduce")) {
    MPI_Reduce(out, in, items, MPI_FLOAT, sum, 0, comm);
    if (leaders != MPI_COMM_NULL)
      MPI_Allreduce(out, in, items, MPI_FLOAT, sum, leaders);
    MPI_Bcast(in, items, MPI_FLOAT, 0, comm);
  } else {
    fprintf(stderr, "unknown operation %s\n", s->what);
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
}

/* GPipe: all forwards, then all backwards */
static void pipeline(int rank, int p, int micro_batches, const Step* stages, char* out, char* in)
{
  const Step* mine = stages + rank;
  for (int k = 0; k < micro_batches; k++) {
    if (rank)
      MPI_Recv(in, (int)stages[rank - 1].nbytes, MPI_BYTE, rank - 1, 1, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    smpi_execute(mine->seconds);
    if (rank < p - 1)
      MPI_Send(out, (int)mine->nbytes, MPI_BYTE, rank + 1, 1, MPI_COMM_WORLD);
  }
  for (int k = 0; k < micro_batches; k++) {
    if (rank < p - 1)
      MPI_Recv(in, (int)mine->nbytes, MPI_BYTE, rank + 1, 2, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
    smpi_execute(mine->backward);
    if (rank)
      MPI_Send(out, (int)stages[rank - 1].nbytes, MPI_BYTE, rank - 1, 2, MPI_COMM_WORLD);
  }
}

int main(int argc, char** argv)
{
  int rank, p, known = 0, more = 0;
  long most = 4;
  Group groups[MOST_GROUPS], tops[MOST_GROUPS];
  MPI_Op sum;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &p);
  MPI_Op_create(no_sum, 1, &sum);
  Step* steps = malloc(sizeof(Step) * MOST_STEPS);
  int n       = read_steps(argc > 1 ? argv[1] : "", steps);
  for (int k = 0; k < n; k++) {
    Step* s = &steps[k];
    int inner = s->inner;
    most = s->nbytes > most ? s->nbytes : most;
    if (inner) {
      group_of(rank, inner, 1, p / inner, groups, &known);
      group_of(rank, p / inner, inner, 1, tops, &more);
    } else if (s->groups)
      group_of(rank, s->size, s->stride, s->groups, groups, &known);
  }
  char* out = SMPI_SHARED_MALLOC(most);
  char* in  = SMPI_SHARED_MALLOC(most);
  /* what a library does at a communicator's first operation is not an iteration's */
  for (int k = 0; k < known; k++)
    if (groups[k].comm != MPI_COMM_NULL)
      MPI_Allreduce(out, in, 1, MPI_FLOAT, sum, groups[k].comm);
  MPI_Barrier(MPI_COMM_WORLD);
  double t = MPI_Wtime();
  for (int k = 0; k < n; k++) {
    const Step* s = &steps[k];
    if (!strcmp(s->what, "compute"))
      smpi_execute(s->seconds);
    else if (!strcmp(s->what, "pipeline")) {
      pipeline(rank, p, s->size, s + 1, out, in);
      k += p;
    } else {
      MPI_Comm top = s->inner ? group_of(rank, p / s->inner, s->inner, 1, tops, &more) : MPI_COMM_NULL;
      MPI_Comm mine = s->inner ? group_of(rank, s->inner, 1, p / s->inner, groups, &known)
                               : group_of(rank, s->size, s->stride, s->groups, groups, &known);
      if (mine != MPI_COMM_NULL)
        send(s, out, in, mine, top, sum);
    }
  }
  t = MPI_Wtime() - t;
  double* times = malloc(sizeof(double) * p);
  MPI_Gather(&t, 1, MPI_DOUBLE, times, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
  for (int k = 1; k < p && !rank; k++)
    t = times[k] > t ? times[k] : t;
  if (!rank)
    printf("iteration %.9g\n", t);
  SMPI_SHARED_FREE(out);
  SMPI_SHARED_FREE(in);
  free(times);
  free(steps);
  MPI_Finalize();
  return 0;
}
