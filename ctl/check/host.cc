#include "ctl/check/host.h"

#include <fcntl.h>
#include <grp.h>
#include <linux/io_uring.h>
#include <linux/magic.h>
#include <pwd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/un.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <memory>
#include <sstream>

#include "core/base/cuda_driver.h"
#include "core/base/fd.h"

namespace kvtier::ctl {
namespace {

int probe_io_uring() {
  io_uring_params params{};
  const UniqueFd ring(static_cast<int>(::syscall(SYS_io_uring_setup, 4, &params)));
  return ring ? 0 : errno;
}

int probe_memfd() {
  const UniqueFd fd(::memfd_create("kvtier-check", MFD_CLOEXEC));
  if (!fd) return errno;
  return ::ftruncate(fd.get(), 4096) == 0 ? 0 : errno;
}

Result<std::vector<GpuFacts>> probe_gpus() {
  const auto driver = CudaDriver::get();
  if (!driver) return driver.error();
  const auto count = (*driver)->devices();
  if (!count) return count.error();
  std::vector<GpuFacts> found;
  for (int number = 0; number < *count; ++number) {
    const auto device = (*driver)->device(number);
    if (!device) return device.error();
    found.push_back({device->name, device->shares_memory});
  }
  return found;
}

std::string name_of_file_system(long magic) {
  static const std::map<long, std::string> kNames{
      {EXT4_SUPER_MAGIC, "ext4"}, {XFS_SUPER_MAGIC, "xfs"},           {BTRFS_SUPER_MAGIC, "btrfs"},
      {TMPFS_MAGIC, "tmpfs"},     {OVERLAYFS_SUPER_MAGIC, "overlay"}, {NFS_SUPER_MAGIC, "nfs"},
      {FUSE_SUPER_MAGIC, "fuse"}, {F2FS_SUPER_MAGIC, "f2fs"},         {0x2FC12FC1, "zfs"}};
  const auto found = kNames.find(magic);
  return found == kNames.end() ? "of another kind" : found->second;
}

// A file of no name, written past the page cache; none where the caller may not write there.
std::optional<int> probe_direct_io(const std::string& directory) {
  if (::access(directory.c_str(), W_OK) != 0) return std::nullopt;
  std::string path = directory + "/kvtier-check-XXXXXX";
  UniqueFd fd(::mkostemp(path.data(), O_CLOEXEC));
  if (!fd) return std::nullopt;
  fd.reset(::open(path.c_str(), O_RDWR | O_DIRECT | O_CLOEXEC));
  const int open_error = errno;
  ::unlink(path.c_str());
  if (!fd) return open_error;
  const std::unique_ptr<void, decltype(&std::free)> page(std::aligned_alloc(4096, 4096),
                                                         &std::free);
  std::memset(page.get(), 0, 4096);
  return ::pwrite(fd.get(), page.get(), 4096, 0) == 4096 ? 0 : errno;
}

Result<DiskFacts> probe_disk(const std::string& directory) {
  struct stat status {};
  if (::stat(directory.c_str(), &status) != 0) {
    return make_error(errno == ENOENT ? Errc::not_found : Errc::io, std::strerror(errno));
  }
  if (!S_ISDIR(status.st_mode)) return make_error(Errc::io, "it is not a directory");
  struct statfs system {};
  struct statvfs space {};
  if (::statfs(directory.c_str(), &system) != 0 || ::statvfs(directory.c_str(), &space) != 0)
    return make_error(Errc::io, std::strerror(errno));
  DiskFacts facts;
  facts.file_system = name_of_file_system(system.f_type);
  facts.free_bytes = std::uint64_t{space.f_bavail} * space.f_frsize;
  facts.direct_io_error = probe_direct_io(directory);
  if (major(status.st_dev) != 0)
    facts.device =
        std::to_string(major(status.st_dev)) + ":" + std::to_string(minor(status.st_dev));
  return facts;
}

SocketFacts probe_socket(const std::string& path) {
  SocketFacts facts;
  struct stat status {};
  facts.exists = ::stat(path.c_str(), &status) == 0;
  if (facts.exists) {
    facts.mode = status.st_mode & 07777;
    const group* found = ::getgrgid(status.st_gid);
    facts.group = found != nullptr ? found->gr_name : std::to_string(status.st_gid);
  }
  const UniqueFd fd(::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  path.copy(address.sun_path, sizeof address.sun_path - 1);
  if (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0)
    facts.connect_error = errno;
  return facts;
}

std::string probe_user() {
  const passwd* found = ::getpwuid(::geteuid());
  return found != nullptr ? found->pw_name : std::to_string(::geteuid());
}

}  // namespace

Host::Host(std::filesystem::path root)
    : io_uring_error(probe_io_uring),
      memfd_error(probe_memfd),
      gpus(probe_gpus),
      disk(probe_disk),
      socket(probe_socket),
      user(probe_user),
      may_use([](const std::string& path) { return ::access(path.c_str(), R_OK | W_OK) == 0; }),
      root_(std::move(root)) {}

std::optional<std::string> Host::read(const std::string& path) const {
  std::ifstream in(root_ / path.substr(1));
  if (!in) return std::nullopt;
  std::ostringstream text;
  text << in.rdbuf();
  if (text.fail()) return std::string();
  return text.str();
}

bool Host::exists(const std::string& path) const {
  std::error_code ignored;
  return std::filesystem::exists(root_ / path.substr(1), ignored);
}

std::optional<std::uint64_t> Host::number(const std::string& path, const std::string& label) const {
  const auto text = read(path);
  if (!text) return std::nullopt;
  const std::size_t at = text->find(label);
  if (at == std::string::npos) return std::nullopt;
  std::istringstream rest(text->substr(at + label.size()));
  std::uint64_t value = 0;
  if (!(rest >> value)) return std::nullopt;
  return value;
}

std::vector<std::string> Host::names(const std::string& directory, const std::string& begin) const {
  std::vector<std::string> found;
  std::error_code error;
  for (const auto& entry :
       std::filesystem::directory_iterator(root_ / directory.substr(1), error)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with(begin)) found.push_back(name);
  }
  std::ranges::sort(found);
  return found;
}

}  // namespace kvtier::ctl
