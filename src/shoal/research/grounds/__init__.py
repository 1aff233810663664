"""The grounds: workloads and clusters of many kinds on which all policies are compared at equal knowledge."""
