#!/bin/bash
# Pretraining and then fine-tuning as a chain of two arrays: element i of the second starts when element i of the first has
# finished, and is cancelled when that one fails. The chain is the stages of a study; this is its command.
#
#   slurm/pretrain_then_glue.sh site=mycluster                       all runs of experiments/cramming
#   slurm/pretrain_then_glue.sh site=mycluster seed=0 --dry-run      the scripts for one seed, without submitting
#   STUDY=path/to/study.yaml slurm/pretrain_then_glue.sh site=…      another study with stages
set -euo pipefail
exec spectral submit "${STUDY:-$(dirname "$0")/../experiments/cramming}" "$@"
