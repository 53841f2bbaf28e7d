"""What files of hwloc, nvidia-smi, ibnetdiscover and InfraGraph tell of how hosts are connected."""
