#!/usr/bin/env bash
# Boots a real systemd as process 1 of namespaces of its own, over a copy-on-write view of this machine's root, runs
# a program in it and takes its exit status. Nothing that happens inside reaches this machine's own files, processes,
# network or settings.
#
#   boot.sh WORK PROGRAM [ARGUMENT ...]
#
# WORK is a directory on a real file system; it is there inside, at /mnt/work, and has the output in WORK/output and
# what changed under WORK/upper. Exit status 77: this machine cannot do it, and the reason is said.
set -euo pipefail

skip() {
  echo "SKIPPED: $*" >&2
  exit 77
}

# Inside the namespaces, on the way to systemd.
enter() {
  local work=$1 root=$1/root node
  mount --make-rprivate /
  mount -t overlay overlay -o "lowerdir=/,upperdir=$work/upper,workdir=$work/overlay" "$root"
  mount -t proc proc "$root/proc"
  # What is set there is the whole machine's.
  mount --bind "$root/proc/sys" "$root/proc/sys"
  mount -o remount,bind,ro "$root/proc/sys"
  mount -t sysfs -o ro sysfs "$root/sys"
  mount -t tmpfs tmpfs "$root/sys/fs/cgroup"
  mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
  mount -t tmpfs -o mode=755 tmpfs "$root/run"
  mount -t tmpfs tmpfs "$root/tmp"
  mount -t tmpfs -o mode=755 tmpfs "$root/dev"
  for node in null zero full random urandom tty; do
    touch "$root/dev/$node"
    mount --bind "/dev/$node" "$root/dev/$node"
  done
  mkdir "$root/dev/shm" "$root/dev/pts"
  mount -t tmpfs tmpfs "$root/dev/shm"
  mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
  ln -s pts/ptmx "$root/dev/ptmx"
  ln -s /proc/self/fd "$root/dev/fd"
  mkdir -p "$root/mnt/work"
  mount --bind "$work" "$root/mnt/work"
  # Some images forbid maintainer scripts to start services.
  rm -f "$root/usr/sbin/policy-rc.d"
  cat > "$root/etc/systemd/system/boot-test.service" <<UNIT
[Unit]
After=basic.target dbus.service
[Service]
Type=oneshot
WorkingDirectory=/mnt/work
ExecStart=/bin/bash -c '. /mnt/work/command > /mnt/work/output 2>&1; echo \$? > /mnt/work/status'
ExecStopPost=/bin/systemctl --no-block exit 0
UNIT
  cat > "$root/etc/systemd/system/boot-test.target" <<UNIT
[Unit]
Requires=basic.target
Wants=dbus.service boot-test.service
UNIT
  touch "$work/entered"
  cd "$root"
  mkdir -p .before
  pivot_root . .before
  exec env -i container=boot-test PATH=/usr/sbin:/usr/bin:/sbin:/bin \
    /lib/systemd/systemd --system --unit=boot-test.target --show-status=no --log-target=journal
}

# A control group of its own, so that several can run at a time and none sees this machine's.
group_of() {
  mount -t cgroup2 cgroup2 "$1/root"
  echo "$1/root/kvtier-$(basename "$1")"
}

case $1 in
--group)
  group=$(group_of "$2")
  mkdir "$group"
  echo $$ > "$group/cgroup.procs"
  umount -l "$2/root"
  exec unshare --mount --pid --ipc --uts --net --cgroup --fork --kill-child --mount-proc "$0" --enter "$2"
  ;;
--enter) enter "$2" ;;
--remove-group)
  find "$(group_of "$2")" -depth -type d -exec rmdir {} +
  exit
  ;;
esac

work=$(realpath "$1")
shift
[[ $(id -u) -eq 0 ]] || skip "needs root"
[[ -x /lib/systemd/systemd ]] || skip "no systemd is installed"
mkdir -p "$work"/{upper,overlay,root}
printf '%q ' "$@" > "$work/command"
rm -f "$work/status" "$work/output"
timeout -k 10 "${BOOT_TIMEOUT_S:-900}" unshare --mount --fork --kill-child "$0" --group "$work" >"$work/console" 2>&1 || true
unshare --mount "$0" --remove-group "$work" || true
[[ -e $work/entered ]] || skip "no namespaces, overlay or control groups of version 2 here: $(tail -1 "$work/console")"
cat "$work/output" 2>/dev/null || true
if [[ ! -s $work/status ]]; then
  cat "$work/console" >&2
  echo "the program did not end within ${BOOT_TIMEOUT_S:-900} s" >&2
  exit 1
fi
exit "$(cat "$work/status")"
