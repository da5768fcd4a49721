"""Hosts on one machine, which are network namespaces. They need root, or a kernel that lets users
make namespaces, and the packages iproute2 and util-linux."""
import os
import shutil
import subprocess
import sys

PACKAGES = {"ip": "iproute2", "tc": "iproute2", "unshare": "util-linux", "nsenter": "util-linux"}
INSIDE = "PSD_INSIDE_NAMESPACE"


def command(*words):
    """Runs a command. Raises CalledProcessError if it fails."""
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=60)


def enter(*programs):
    """Runs the calling program again from its start in a network namespace of its own, and returns
    None there. `programs` are those that it needs besides ip, unshare and nsenter.

    Returns what is missing if that cannot be done.
    """
    os.environ["PATH"] += ":/usr/sbin:/sbin"
    missing = ["%s (package %s)" % (program, PACKAGES[program])
               for program in ("ip", "unshare", "nsenter", *programs) if not shutil.which(program)]
    if missing:
        return "not installed: " + ", ".join(missing)
    if os.environ.pop(INSIDE, None):
        command("ip", "link", "set", "lo", "up")
        return None
    for words in (["unshare", "--net"], ["unshare", "--map-root-user", "--net"]):
        probe = [*words, "ip", "link", "add", "psd0", "type", "veth", "peer", "name", "psd1"]
        if subprocess.run(probe, capture_output=True, check=False).returncode == 0:
            os.environ[INSIDE] = "yes"
            os.execvp(words[0], [*words, sys.executable, "-B", *sys.argv])
    return "network namespaces cannot be made here (unshare --net, ip link add type veth)"


class Host:
    """A network namespace with an interface eth0, which is linked to an interface `link` of the
    caller's namespace. It lives until it is closed or the caller's process ends."""

    def __init__(self, link, ip):
        self.ip = ip
        self._link = link
        # The first line comes from inside the namespace, so it exists by then.
        self._holder = subprocess.Popen(["unshare", "--net", "sh", "-c", "echo; exec cat"],
                                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._holder.stdout.readline()
        pid = str(self._holder.pid)
        # Before a command, this runs it on the host.
        self.enter = [shutil.which("nsenter"), "--net=/proc/%s/ns/net" % pid]
        command("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", pid)
        command("ip", "link", "set", link, "up")
        command(*self.enter, "ip", "address", "add", ip + "/24", "dev", "eth0")
        command(*self.enter, "ip", "link", "set", "eth0", "up")
        command(*self.enter, "ip", "link", "set", "lo", "up")

    def close(self):
        # The kernel would remove the link only some time after the namespace ends.
        command("ip", "link", "delete", self._link)
        self._holder.stdin.close()
        self._holder.wait()
        self._holder.stdout.close()
