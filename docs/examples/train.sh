#!/bin/bash
#SBATCH --job-name=sweep
#SBATCH --partition=gpu
#SBATCH --gres=gpu:a100:2
#SBATCH --time=02:00:00
#SBATCH --account=nlp
#SBATCH --mem=64G
#SBATCH --array=0-1
#SBATCH --output=sweep-%A_%a.out
python train.py --seed "$SLURM_ARRAY_TASK_ID" --out "runs/$SLURM_JOB_ID"
