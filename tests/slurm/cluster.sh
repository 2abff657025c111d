#!/usr/bin/env bash
# Start or stop a Slurm cluster of one node on this machine: cluster.sh start|stop FOLDER
# Everything it writes lies in FOLDER; use it with SLURM_CONF=FOLDER/slurm.conf. Needs root.
set -euo pipefail
folder=$(mkdir -p "$2" && cd "$2" && pwd)

if [ "$1" = stop ]; then
    for daemon in slurmd slurmctld; do
        [ -f "$folder/$daemon.pid" ] && kill "$(cat "$folder/$daemon.pid")" 2>/dev/null || true
    done
    exit 0
fi

mkdir -p "$folder/state" "$folder/spool"
cat > "$folder/slurm.conf" <<CONF
ClusterName=spanwise
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
ReturnToService=2
MinJobAge=3600
SchedulerParameters=sched_interval=1,sched_min_interval=0
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=$(nproc) State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
CONF
printf 'IgnoreSystemd=yes\n' > "$folder/cgroup.conf"
export SLURM_CONF="$folder/slurm.conf"
slurmctld -c
slurmd -c
for _ in $(seq 60); do
    sinfo --noheader --format=%T 2>/dev/null | grep -q idle && exit 0
    sleep 0.5
done
echo "the node did not come up; see $folder/*.log" >&2
exit 1
