// GPUs and disks.
#include <cerrno>
#include <cstring>

#include "core/terminal/units.h"
#include "ctl/check/check_system.h"

namespace kvtier::ctl {
namespace {

using State = Check::State;

void check_device_nodes(Checks& out, const Host& host) {
  std::string closed;
  std::vector<std::string> nodes = host.names("/dev", "nvidia");
  std::erase_if(nodes, [](const std::string& name) {
    // Beside the control nodes, nvidia0, nvidia1, ...
    return name != "nvidiactl" && name != "nvidia-uvm" &&
           name.find_first_not_of("0123456789", 6) != std::string::npos;
  });
  for (const std::string& node : nodes) {
    if (!host.may_use("/dev/" + node)) closed += " /dev/" + node;
  }
  if (nodes.empty()) {
    out.push_back({State::failed, "GPU device files", "there is no /dev/nvidia*",
                   "nvidia-modprobe -u -c 0    (in a container: docker run --gpus all)"});
  } else if (!closed.empty()) {
    out.push_back({State::failed, "GPU device files", "not readable and writable:" + closed,
                   "chmod 0666" + closed});
  } else {
    out.push_back(
        {State::ok, "GPU device files", std::to_string(nodes.size()) + " can be used", ""});
  }
}

void check_disk_room(Checks& out, const Setup::Disk& disk, const DiskFacts& facts) {
  const std::uint64_t to_come = disk.cap_bytes - std::min(disk.cap_bytes, disk.file_bytes);
  const bool enough = facts.free_bytes >= to_come;
  out.push_back(
      {enough ? State::ok : State::failed, "disk " + disk.directory + ": room",
       human_bytes(facts.free_bytes) + " free, " + human_bytes(to_come) + " may still be taken",
       enough ? ""
              : "set [disk] capacity in kvtierd.toml to at most " +
                    std::to_string((facts.free_bytes + disk.file_bytes) / 10 * 9 >> 20) + "MiB"});
}

void check_file_system(Checks& out, const Setup::Disk& disk, const DiskFacts& facts) {
  const std::string& kind = facts.file_system;
  const std::string name = "disk " + disk.directory + ": file system";
  const std::string mend =
      "move [disk] directory to a local file system: mkfs.xfs /dev/DEVICE && mount "
      "/dev/DEVICE " +
      disk.directory;
  if (kind == "tmpfs" || kind == "nfs" || kind == "fuse") {
    out.push_back({State::failed, name,
                   kind + (kind == "tmpfs" ? ": that is memory, not a disk" : ": not a local disk"),
                   mend});
  } else if (facts.direct_io_error.value_or(0) != 0) {
    out.push_back({State::failed, name,
                   kind + ": O_DIRECT does not work: " + std::strerror(*facts.direct_io_error),
                   mend});
  } else if (kind == "ext4" || kind == "xfs") {
    out.push_back({State::ok, name,
                   kind + (facts.direct_io_error ? ", O_DIRECT works"
                                                 : "; O_DIRECT was not tried, as this "
                                                   "account may not write there"),
                   ""});
  } else {
    out.push_back({State::warning, name, kind + ": kvtierd is tested on ext4 and xfs", mend});
  }
}

void check_block_device(Checks& out, const Host& host, const Setup::Disk& disk,
                        const DiskFacts& facts) {
  if (facts.device.empty()) return;
  // A partition has its queue one level up.
  std::string queue = "/sys/dev/block/" + facts.device + "/queue";
  if (!host.exists(queue)) queue = "/sys/dev/block/" + facts.device + "/../queue";
  const auto rotates = host.number(queue + "/rotational");
  const auto schedulers = host.read(queue + "/scheduler");
  if (!rotates || !schedulers) return;
  if (*rotates != 0) {
    out.push_back({State::warning, "disk " + disk.directory + ": drive",
                   "it rotates: a hit there is slower than computing anew",
                   "move [disk] directory to an NVMe drive, or leave it out"});
  }
  const std::size_t open = schedulers->find('[');
  const std::string scheduler =
      open == std::string::npos ? *schedulers
                                : schedulers->substr(open + 1, schedulers->find(']') - open - 1);
  const bool good =
      scheduler == "none" || scheduler == "mq-deadline" || scheduler.starts_with("none");
  out.push_back({good ? State::ok : State::warning, "disk " + disk.directory + ": scheduler",
                 scheduler + (good ? "" : ": it slows a fast drive down"),
                 good ? "" : "echo none > " + queue + "/scheduler"});
}

}  // namespace

void check_gpus(Checks& out, const Host& host, const Setup& setup) {
  const auto gpus = host.gpus();
  if (!setup.cuda) {
    out.push_back({State::ok, "GPU",
                   std::string("no GPU is configured ([device] backend = \"cuda\"); ") +
                       (gpus ? std::to_string(gpus->size()) + " are here"
                             : std::string("none is usable here")),
                   ""});
    return;
  }
  check_device_nodes(out, host);
  if (!gpus) {
    out.push_back({State::failed, "GPU driver", gpus.error().message,
                   "apt-get install nvidia-driver libcuda1 && modprobe nvidia nvidia_uvm"});
    return;
  }
  for (const GpuFacts& gpu : *gpus) {
    out.push_back({gpu.shares_memory ? State::ok : State::failed, "GPU " + gpu.name,
                   gpu.shares_memory
                       ? "its memory can be shared by descriptors"
                       : "its memory cannot be shared by descriptors, as virtual GPUs' cannot",
                   gpu.shares_memory ? "" : "set [device] capacity = 0 in kvtierd.toml"});
  }
}

void check_disks(Checks& out, const Host& host, const Setup& setup) {
  if (setup.disks.empty())
    out.push_back({State::ok, "disk", "no disk tier is configured ([disk] directory)", ""});
  for (const Setup::Disk& disk : setup.disks) {
    const auto facts = host.disk(disk.directory);
    if (!facts) {
      out.push_back({State::failed, "disk " + disk.directory, facts.error().message,
                     "install -d -o kvtier -g kvtier -m 0750 " + disk.directory});
      continue;
    }
    check_file_system(out, disk, *facts);
    check_disk_room(out, disk, *facts);
    check_block_device(out, host, disk, *facts);
  }
}

}  // namespace kvtier::ctl
