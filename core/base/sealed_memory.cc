#include "core/base/sealed_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/aligned_mapping.h"
#include "core/base/status.h"
#include "core/base/system_refusal.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace psd {
namespace {

// MFD_NOEXEC_SEAL, which older headers do not name. Some systems allow no other files.
constexpr unsigned kNoExecution = 0x0008;

// MADV_POPULATE_WRITE and MADV_COLLAPSE, which older headers do not name.
constexpr int kPopulateForWriting = 23;
constexpr int kCollapse = 25;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

absl::Status NoMemory(absl::string_view purpose, size_t bytes, const char* step, int error) {
  return SystemRefusal(
      absl::StrCat(bytes, " bytes of shared memory for ", purpose, " (", step, ")"), error);
}

// A file that would grow beyond this limit, which counts for shared memory, too, ends the process
// with a signal.
bool MayHaveFilesOf(size_t bytes) {
  rlimit limit = {};
  return getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes <= limit.rlim_cur;
}

// Maps a file with the pages that it has. Returns null, with errno set, if the system refuses.
void* MapFile(int fd, size_t bytes, int protection) {
  void* place = nullptr;
  int flags = MAP_SHARED;
  if (bytes >= kHugePageBytes) {
    // The file replaces a mapping that has the right address.
    place = MapAligned((bytes + kPageBytes - 1) / kPageBytes * kPageBytes, kHugePageBytes);
    if (place == nullptr) return nullptr;
    flags |= MAP_FIXED;
  }
  // If this fails, the system may have removed the replaced mapping, and another thread may use its
  // address by now. So it is not removed here.
  void* memory = mmap(place, bytes, protection, flags, fd, 0);
  return memory == MAP_FAILED ? nullptr : memory;
}

// Gives an empty file huge pages for as much of `mapping` as they fill. Small pages take three
// times as long to make and a quarter longer to read and write. All this is a hint: what it leaves
// empty gets small pages.
void FillWithHugePages(int fd, const MemoryMapping& mapping) {
  const size_t bytes = mapping.size() / kHugePageBytes * kHugePageBytes;
  // A page is made huge together with the empty ones around it, so each needs one page.
  for (size_t at = 0; at < bytes; at += kHugePageBytes) {
    if (fallocate(fd, 0, static_cast<off_t>(at), kPageBytes) != 0) return;
  }
  if (bytes > 0) madvise(mapping.data(), bytes, kCollapse);
}

// Allocates all pages of a file that it does not have yet. Returns 0 or an errno.
int AllocatePages(int fd, size_t bytes) {
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  return error;
}

// Checks what mapping a peer's file requires besides its seals. A mapping that the system refuses
// leaves its addresses taken (MapFile), so a peer must not be able to cause that again and again.
absl::Status CheckMappable(int fd) {
  if ((fcntl(fd, F_GETFL) & O_ACCMODE) != O_RDWR) {
    return absl::InvalidArgumentError(
        "the peer's descriptor is not open for reading and writing; both are needed");
  }
  struct statfs system = {};
  if (fstatfs(fd, &system) != 0 || system.f_type != TMPFS_MAGIC) {
    return absl::InvalidArgumentError(
        "the peer's segment is in a file system for huge pages, which may need other addresses");
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SealedMemory> MakeSealedMemory(const char* name, absl::string_view purpose,
                                              size_t bytes) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecution));
  if (!fd.valid() && errno == EINVAL)  // systems before Linux 6.3
    fd = UniqueFd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return NoMemory(purpose, bytes, "memfd_create", errno);
  if (!MayHaveFilesOf(bytes)) return NoMemory(purpose, bytes, "ftruncate", EFBIG);
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return NoMemory(purpose, bytes, "ftruncate", errno);
  MemoryMapping mapping(MapFile(fd.get(), bytes, PROT_READ | PROT_WRITE), bytes);
  if (mapping.data() == nullptr) return NoMemory(purpose, bytes, "mmap", errno);
  FillWithHugePages(fd.get(), mapping);
  // All pages are there from the start, so no later access can fail for memory.
  if (const int error = AllocatePages(fd.get(), bytes); error != 0)
    return NoMemory(purpose, bytes, "fallocate", error);
  madvise(mapping.data(), bytes, kPopulateForWriting);  // without it, the first access is slower
  if (fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    if (errno != EINVAL) return NoMemory(purpose, bytes, "F_ADD_SEALS", errno);
    return absl::UnimplementedError(
        "this system cannot seal shared memory against writers; Linux 5.1 or later can");
  }
  return SealedMemory{std::move(fd), std::move(mapping)};
}

absl::StatusOr<MemoryMapping> MapSealedMemory(const UniqueFd& fd, size_t bytes,
                                              absl::string_view needed_by) {
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the peer's descriptor is no sealed memory: F_GET_SEALS: ", std::strerror(errno)));
  }
  // Some systems refuse to map what is sealed against all writers (F_SEAL_WRITE).
  if ((seals & kSeals) != kSeals || (seals & F_SEAL_WRITE) != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the peer's segment has the seals ", seals, "; ", kSeals,
        " (against shrinking, growing, later writers and further seals) are needed, and not ",
        F_SEAL_WRITE, " (against all writers)"));
  }
  PSD_RETURN_IF_ERROR(CheckMappable(fd.get()));
  struct stat status = {};
  if (fstat(fd.get(), &status) != 0 || static_cast<size_t>(status.st_size) != bytes) {
    return absl::InvalidArgumentError(absl::StrCat("the peer's segment has ", status.st_size,
                                                   " bytes; ", needed_by, " take ", bytes));
  }
  // Pages can be allocated behind the end of a file, too. They go when the file is cut to the
  // length that it has, and none can come back, because it is sealed against growing. So the pages
  // that are left all lie before the end.
  if (ftruncate(fd.get(), status.st_size) != 0 || fstat(fd.get(), &status) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer's segment cannot be cut to its length: ", std::strerror(errno)));
  }
  if (static_cast<size_t>(status.st_blocks) * 512 < bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("of the ", bytes, " bytes of the peer's segment only ",
                     static_cast<size_t>(status.st_blocks) * 512, " are allocated"));
  }
  // The reader finds the pages when it comes to them: looking all of them up here would take up to
  // half a second for each GiB, and keep the calling thread from its other work.
  MemoryMapping mapping(MapFile(fd.get(), bytes, PROT_READ), bytes);
  if (mapping.data() == nullptr) return NoMemory(needed_by, bytes, "mmap", errno);
  return mapping;
}

}  // namespace psd
