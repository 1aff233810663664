"""Files that describe jobs: job files, #SBATCH scripts and search files."""
