"""Hosts with a network of their own each, as far as the kernel lets a test have them: namespaces joined by veth pairs."""
import os
import subprocess
import sys


def enter():
    """Runs this program again in a network namespace of its own, where that can be had and it is not in one already. Returns
    why not, or None inside."""
    if os.environ.get("KVTIER_TEST_NETWORK"):
        subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
        return None
    own = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    try:
        tried = subprocess.run([*own, "ip", "link", "add", "kvtier0", "type", "veth", "peer", "name", "kvtier1"],
                               capture_output=True, text=True)
    except FileNotFoundError as missing:
        return f"there is no {missing.filename}"
    if tried.returncode:
        return tried.stderr.strip()
    os.execvpe(own[0], [*own, sys.executable, *sys.argv], {**os.environ, "KVTIER_TEST_NETWORK": "1"})


class Network:
    """A host's: its address, which the test's own namespace reaches, and `inside`, by which a command is run there."""

    def __init__(self, test, number):
        # In a namespace of its own for as long as it runs.
        holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec sleep infinity"], stdout=subprocess.PIPE)
        test.addCleanup(self._end, holder, f"host{number}")
        holder.stdout.readline()
        self.address = f"10.77.{number}.2"
        # --target joins; what runs there has the pid that nsenter had.
        self.inside = ["nsenter", "--target", str(holder.pid), "--net"]
        ip = ["ip", "link", "add", f"host{number}", "type", "veth", "peer", "name", "up0", "netns", str(holder.pid)]
        for command in (ip, ["ip", "address", "add", f"10.77.{number}.1/30", "dev", f"host{number}"],
                        ["ip", "link", "set", f"host{number}", "up"],
                        [*self.inside, "ip", "link", "set", "lo", "up"],
                        [*self.inside, "ip", "address", "add", f"{self.address}/30", "dev", "up0"],
                        [*self.inside, "ip", "link", "set", "up0", "up"]):
            subprocess.run(command, check=True)

    @staticmethod
    def _end(holder, link):
        # A namespace goes some time after its last process, and the next test's link has the same name.
        subprocess.run(["ip", "link", "delete", link], stderr=subprocess.DEVNULL)
        holder.kill()
        holder.wait(timeout=60)
        holder.stdout.close()
