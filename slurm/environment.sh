# The run decides what a signal means; this shell waits for it.
trap : TERM
{{site}}
export OMP_NUM_THREADS="$SLURM_CPUS_PER_TASK"
export MASTER_ADDR={{master_addr}}
export MASTER_PORT={{master_port}}
export SPECTRAL_MAX_RESTARTS={{max_restarts}}
echo "$(date +%FT%T) job ${SLURM_ARRAY_JOB_ID:-$SLURM_JOB_ID}${SLURM_ARRAY_TASK_ID:+_$SLURM_ARRAY_TASK_ID}, start $((${SLURM_RESTART_COUNT:-0} + 1)), on $SLURM_JOB_NODELIST"
