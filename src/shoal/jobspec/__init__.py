"""Files that users write: job files, ``#SBATCH`` scripts and search files, read into submissions."""
