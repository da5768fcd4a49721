#include "core/carrier/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/carrier/bulk_queue.h"

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace psd::carrier {
namespace {

// MFD_NOEXEC_SEAL, which older headers do not name. Some systems allow no other files.
constexpr unsigned kNoExecution = 0x0008;

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE;

absl::Status NoMemory(size_t bytes, const char* step, int error) {
  return WithRemedy(
      absl::ResourceExhaustedError(absl::StrCat("the system has no ", bytes,
                                                " bytes of shared memory for a link: ", step, ": ",
                                                std::strerror(error))),
      "raise the memory limit or the number of file descriptors of this process, or turn shared "
      "memory off");
}

bool PowerOfTwoWithin(size_t bytes) {
  return bytes >= kMinRingBytes && bytes <= kMaxRingBytes && (bytes & (bytes - 1)) == 0;
}

}  // namespace

absl::Status CheckRingSizes(const RingSizes& sizes) {
  for (const size_t bytes : {sizes.control_bytes, sizes.bulk_bytes}) {
    if (PowerOfTwoWithin(bytes)) continue;
    return absl::InvalidArgumentError(absl::StrCat("a ring of ", bytes,
                                                   " bytes; powers of two from ", kMinRingBytes,
                                                   " to ", kMaxRingBytes, " work"));
  }
  if (sizes.bulk_rings < 1 || sizes.bulk_rings > BulkQueue::kMaxStreams) {
    return absl::InvalidArgumentError(absl::StrCat(sizes.bulk_rings, " rings for pieces; 1 to ",
                                                   BulkQueue::kMaxStreams, " work"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<OwnSegment>> OwnSegment::Create(const RingSizes& sizes,
                                                               MemoryAccount& account) {
  PSD_RETURN_IF_ERROR(CheckRingSizes(sizes));
  const size_t bytes = sizes.SegmentBytes();
  PSD_ASSIGN_OR_RETURN(MemoryCharge charge, account.Charge(bytes));
  UniqueFd fd(memfd_create("psd-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING | kNoExecution));
  if (!fd.valid() && errno == EINVAL)  // systems before Linux 6.3
    fd = UniqueFd(memfd_create("psd-rings", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return NoMemory(bytes, "memfd_create", errno);
  // All pages are there from the start, so no later access can fail for memory.
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0)
    return NoMemory(bytes, "ftruncate", errno);
  int error = EINTR;
  while (error == EINTR) error = posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes));
  if (error != 0) return NoMemory(bytes, "fallocate", error);
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return NoMemory(bytes, "mmap", errno);
  new (memory) SegmentHeader;
  auto segment =
      std::unique_ptr<OwnSegment>(new OwnSegment(sizes, std::move(fd), memory, std::move(charge)));
  if (fcntl(segment->fd(), F_ADD_SEALS, kSeals | F_SEAL_SEAL) != 0) {
    return absl::UnimplementedError(absl::StrCat(
        "this system cannot seal shared memory against writers: ", std::strerror(errno),
        "; Linux 5.1 or later can"));
  }
  return segment;
}

OwnSegment::OwnSegment(const RingSizes& sizes, UniqueFd fd, void* memory, MemoryCharge charge)
    : sizes_(sizes), fd_(std::move(fd)), memory_(memory), charge_(std::move(charge)) {}

OwnSegment::~OwnSegment() {
  munmap(memory_, sizes_.SegmentBytes());
}

absl::StatusOr<std::unique_ptr<PeerSegment>> PeerSegment::Map(const RingSizes& sizes, UniqueFd fd) {
  PSD_RETURN_IF_ERROR(CheckRingSizes(sizes));
  const size_t bytes = sizes.SegmentBytes();
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (seals < 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the peer's descriptor is no sealed memory: F_GET_SEALS: ", std::strerror(errno)));
  }
  if ((seals & kSeals) != kSeals) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer's segment has the seals ", seals, "; ", kSeals,
                     " (against shrinking, growing and later writers) are needed"));
  }
  struct stat status = {};
  if (fstat(fd.get(), &status) != 0 || static_cast<size_t>(status.st_size) != bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer's segment has ", status.st_size, " bytes; its rings take ", bytes));
  }
  if (static_cast<size_t>(status.st_blocks) * 512 < bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("of the ", bytes, " bytes of the peer's segment only ",
                     static_cast<size_t>(status.st_blocks) * 512, " are allocated"));
  }
  const void* memory = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return NoMemory(bytes, "mmap", errno);
  return std::unique_ptr<PeerSegment>(new PeerSegment(sizes, memory));
}

PeerSegment::~PeerSegment() {
  munmap(const_cast<void*>(memory_), sizes_.SegmentBytes());
}

}  // namespace psd::carrier
