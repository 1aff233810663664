# Stands in for conda's shell functions.
conda() { [ "$1" = activate ] && export CONDA_DEFAULT_ENV=$2; }
