#!/bin/sh
# Starts a program in a place of its own. Run by `unshare --mount`, so that every mount made here ends with the
# processes that see it.
#   launch.sh hide|show <disk image or -> <mount point or -> <cgroup.procs file>... -- program args...
# hide: this runsc takes /proc/sys/net/core/rmem_default as the mark of the host's root network namespace, and newer
#       kernels show it in every namespace; an empty tmpfs over /proc/sys/net takes the mark away.
# nobarrier: the disk ends with the machine, and a machine ends with the power, so that nothing waits for the host's disk;
#       else the last process would, when its mounts go with it.
# What is started here comes first when the kernel must end something for lack of memory, and hands that down to the
# processes that run the guest's code; the driver takes the mark off the runtime's own.
set -eu
sysctls=$1 disk=$2 mountpoint=$3
shift 3
while [ "$1" != -- ]; do
  echo $$ > "$1"
  shift
done
shift
if [ "$disk" != - ]; then echo 900 > /proc/self/oom_score_adj; fi
if [ "$sysctls" = hide ]; then mount -t tmpfs -o ro none /proc/sys/net; fi
if [ "$disk" != - ]; then mount -t ext4 -o loop,noatime,nodev,nosuid,nobarrier "$disk" "$mountpoint"; fi
exec "$@"
