"""Files people write: job files, ``#SBATCH`` scripts and search files, read into submissions."""
