#include "core/device/emulated/device_arena.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>
#include <mutex>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "core/base/aligned_mapping.h"
#include "core/base/buffer.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/base/system_refusal.h"
#include "core/base/tsan.h"
#include "core/device/emulated/arena_file.h"
#include "core/device/emulated/quiet_lock.h"
#include "core/device/emulated/visible_copy.h"

#if defined(__SANITIZE_ADDRESS__)
#define PSD_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define PSD_ASAN 1
#endif
#endif
#ifdef PSD_ASAN
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, size) \
  (static_cast<void>(address), static_cast<void>(size))
#define ASAN_UNPOISON_MEMORY_REGION(address, size) \
  (static_cast<void>(address), static_cast<void>(size))
#endif

namespace psd::emulated {
namespace {

constexpr std::byte kUndefined{0xff};
constexpr std::byte kRedZone{0xb5};

// All arenas of the process, and the handler of SIGSEGV that was there before. Both are for OnSegv,
// which the system calls without an argument of ours.
std::array<std::atomic<const DeviceArena*>, DeviceArena::kMostArenas> arenas;
struct sigaction former_handler;
thread_local const char* current_operation = nullptr;

size_t RoundUp(size_t bytes, size_t unit) {
  return (bytes + unit - 1) / unit * unit;
}

// The bytes of a block with those up to the next multiple of the alignment. A block of no bytes has
// an address of its own too.
size_t Aligned(size_t size) {
  return RoundUp(std::max<size_t>(size, 1), kBlockAlignment);
}

// The pages of a block without the closed one.
struct Pages {
  std::byte* begin;
  size_t bytes;
};
Pages PagesOf(std::byte* inside, size_t size) {
  const size_t bytes = RoundUp(Aligned(size), kPageBytes);
  return {inside + Aligned(size) - bytes, bytes};
}

// Explains the access if it concerns an arena. Then the handler that was there before, or the
// system, ends the process at the same instruction.
void OnSegv(int /*signal*/, siginfo_t* info, void* /*context*/) {
  DeviceArena::Explain(info->si_addr);
  sigaction(SIGSEGV, &former_handler, nullptr);
}

void InstallHandler() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction handler {};
    handler.sa_sigaction = &OnSegv;
    handler.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&handler.sa_mask);
    PSD_CHECK(sigaction(SIGSEGV, &handler, &former_handler) == 0, "sigaction takes SIGSEGV");
  });
}

// Writes `parts` to the standard error. Safe in a handler of signals.
void WriteLine(std::initializer_list<const char*> parts) {
  for (const char* part : parts) {
    if (write(STDERR_FILENO, part, std::strlen(part)) < 0) return;
  }
}

// Whether the page of the address is open for reading. Safe in a handler of signals.
bool IsReadable(const void* address) {
  int ends[2];
  if (pipe(ends) != 0) return false;
  const bool readable = write(ends[1], address, 1) == 1;
  close(ends[0]);
  close(ends[1]);
  return readable;
}

[[noreturn]] void EndWithBrokenRedZone(const std::string& device, size_t size, const char* where,
                                       const char* found) {
  std::fprintf(stderr, "%s: the bytes %s a block of %zu bytes were written; found %s\n",
               device.c_str(), where, size, found);
  std::abort();
}

// Requires: the bytes are less than a page.
bool IsRedZone(const std::byte* begin, const std::byte* end) {
  static const std::vector<std::byte> intact(kPageBytes, kRedZone);
  return std::memcmp(begin, intact.data(), static_cast<size_t>(end - begin)) == 0;
}

}  // namespace

// The first page stays closed.
absl::StatusOr<std::unique_ptr<DeviceArena>> DeviceArena::Create(std::string device, size_t bytes) {
  bytes = RoundUp(bytes, kPageBytes) + kPageBytes;
  PSD_ASSIGN_OR_RETURN(UniqueFd file, MakeArenaFile(device, bytes));
  std::unique_ptr<DeviceArena> arena(new DeviceArena(std::move(device), bytes, /*of_peer=*/false));
  PSD_RETURN_IF_ERROR(arena->Start(file));
  arena->file_ = std::move(file);
  return arena;
}

absl::StatusOr<std::unique_ptr<DeviceArena>> DeviceArena::OfPeer(std::string device,
                                                                 UniqueFd file) {
  PSD_ASSIGN_OR_RETURN(const size_t bytes, CheckArenaFile(device, file));
  std::unique_ptr<DeviceArena> arena(new DeviceArena(std::move(device), bytes, /*of_peer=*/true));
  PSD_RETURN_IF_ERROR(arena->Start(file));
  return arena;
}

DeviceArena::DeviceArena(std::string device, size_t bytes, bool of_peer)
    : device_(std::move(device)), bytes_(bytes), of_peer_(of_peer) {}

absl::Status DeviceArena::Start(const UniqueFd& file) {
  PSD_RETURN_IF_ERROR(Map(file));
  PSD_RETURN_IF_ERROR(Register());
  InstallHandler();
  return absl::OkStatus();
}

absl::Status DeviceArena::Map(const UniqueFd& file) {
  const auto map = [&]() -> std::byte* {
    void* const address =
        mmap(nullptr, bytes_, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file.get(), 0);
    return address == MAP_FAILED ? nullptr : static_cast<std::byte*>(address);
  };
  outside_ = map();
  if (outside_ != nullptr) inside_ = map();
  if (inside_ != nullptr) return absl::OkStatus();
  return WithRemedy(absl::ResourceExhaustedError(
                        absl::StrCat("the system has no address space of 2 × ", bytes_,
                                     " bytes for ", device_, ": ", std::strerror(errno))),
                    "lower the device's budget or its number of blocks");
}

absl::Status DeviceArena::Register() {
  for (size_t slot = 0; slot < kMostArenas; ++slot) {
    const DeviceArena* none = nullptr;
    if (!arenas[slot].compare_exchange_strong(none, this)) continue;
    slot_ = slot;
    return absl::OkStatus();
  }
  return WithRemedy(
      absl::ResourceExhaustedError(absl::StrCat("no memory can be mapped for ", device_,
                                                ": this process has mapped that of ", kMostArenas,
                                                " emulated devices already")),
      "use fewer emulated devices at once");
}

DeviceArena::~DeviceArena() {
  if (slot_ < kMostArenas) arenas[slot_].store(nullptr);
  if (outside_ != nullptr) munmap(outside_, bytes_);
  if (inside_ == nullptr) return;
  ASAN_UNPOISON_MEMORY_REGION(inside_, bytes_);
  munmap(inside_, bytes_);
}

size_t DeviceArena::BytesOf(size_t size) {
  return RoundUp(Aligned(size), kPageBytes) + kPageBytes;
}

std::byte* DeviceArena::AddressOf(size_t offset, size_t size) const {
  return outside_ + kPageBytes + offset + BytesOf(size) - kPageBytes - Aligned(size);
}

absl::StatusOr<UniqueFd> DeviceArena::Descriptor() const {
  UniqueFd copy(fcntl(file_.get(), F_DUPFD_CLOEXEC, 0));
  if (copy.valid()) return copy;
  return SystemRefusal(absl::StrCat("a descriptor of the memory of ", device_), errno);
}

size_t DeviceArena::PlaceOf(const std::byte* address) const {
  return static_cast<size_t>(address - outside_);
}

bool DeviceArena::CanHaveBlock(size_t place, size_t size) const {
  if (size > bytes_ || place > bytes_) return false;
  const size_t end = place + Aligned(size);
  return end % kPageBytes == 0 && end + kPageBytes <= bytes_ &&
         end >= kPageBytes + RoundUp(Aligned(size), kPageBytes);
}

bool DeviceArena::Contains(const void* address, size_t bytes) const {
  const auto* const begin = static_cast<const std::byte*>(address);
  return begin >= outside_ && begin <= outside_ + bytes_ &&
         bytes <= static_cast<size_t>(outside_ + bytes_ - begin);
}

std::byte* DeviceArena::Inside(const void* address) const {
  PSD_CHECK(Contains(address, 0), "the address is one of the device");
  return inside_ + (static_cast<const std::byte*>(address) - outside_);
}

void DeviceArena::Open(const std::byte* address, size_t size) {
  std::byte* const begin = Inside(address);
  const Pages pages = PagesOf(begin, size);
  PSD_CHECK(mprotect(pages.begin, pages.bytes, PROT_READ | PROT_WRITE) == 0,
            absl::StrCat("no access to a block of ", device_, ": ", std::strerror(errno),
                         " (the limit of mappings is vm.max_map_count)"));
  ASAN_UNPOISON_MEMORY_REGION(pages.begin, pages.bytes);
  // Every stream that used this memory has left it: the pool has made this stream wait for them.
  for (std::byte* page = pages.begin; page < pages.begin + pages.bytes; page += kPageBytes)
    PSD_TSAN_ACQUIRE(page);
  VisibleFill(pages.begin, kRedZone, pages.bytes);
  VisibleFill(begin, kUndefined, size);
  // The bytes behind the block may be read (kBlockAlignment), so they are not poisoned.
  ASAN_POISON_MEMORY_REGION(pages.begin, static_cast<size_t>(begin - pages.begin));
}

void DeviceArena::Leave(const std::byte* address, size_t size) const {
  const Pages pages = PagesOf(Inside(address), size);
  for (std::byte* page = pages.begin; page < pages.begin + pages.bytes; page += kPageBytes)
    PSD_TSAN_RELEASE(page);
}

void DeviceArena::Close(const std::byte* address, size_t size) {
  CheckRedZones(address, size, "when it was freed");
  const Pages pages = PagesOf(Inside(address), size);
  // Gives the memory back to the system. What is not given back is overwritten when it is opened.
  static_cast<void>(madvise(pages.begin, pages.bytes, MADV_REMOVE));
  PSD_CHECK(mprotect(pages.begin, pages.bytes, PROT_NONE) == 0, std::strerror(errno));
  ASAN_POISON_MEMORY_REGION(pages.begin, pages.bytes);
}

absl::Status DeviceArena::OpenForReading(const std::byte* address, size_t size) {
  const Pages pages = PagesOf(Inside(address), size);
  if (mprotect(pages.begin, pages.bytes, PROT_READ) == 0) return absl::OkStatus();
  return WithRemedy(absl::ResourceExhaustedError(
                        absl::StrCat("the system gives ", device_, " no access to a block of ",
                                     size, " bytes of another process: ", std::strerror(errno))),
                    "raise the limit of mappings, vm.max_map_count");
}

void DeviceArena::CloseForReading(const std::byte* address, size_t size) {
  const Pages pages = PagesOf(Inside(address), size);
  PSD_CHECK(mprotect(pages.begin, pages.bytes, PROT_NONE) == 0, std::strerror(errno));
}

void DeviceArena::CheckRedZones(const std::byte* address, size_t size, const char* found) const {
  const Quiet quiet;  // another stream may have opened the block
  std::byte* const begin = Inside(address);
  const Pages pages = PagesOf(begin, size);
  if (!IsRedZone(begin + size, pages.begin + pages.bytes))
    EndWithBrokenRedZone(device_, size, "behind", found);
  const auto before = static_cast<size_t>(begin - pages.begin);
  if (before == 0) return;
  ASAN_UNPOISON_MEMORY_REGION(pages.begin, before);
  if (!IsRedZone(pages.begin, begin)) EndWithBrokenRedZone(device_, size, "before", found);
  ASAN_POISON_MEMORY_REGION(pages.begin, before);
}

void DeviceArena::Explain(const void* address) {
  const auto* const byte = static_cast<const std::byte*>(address);
  for (const std::atomic<const DeviceArena*>& each : arenas) {
    const DeviceArena* const arena = each.load();
    if (arena == nullptr) continue;
    const char* const device = arena->device_.c_str();
    if (byte >= arena->inside_ && byte < arena->inside_ + arena->bytes_) {
      arena->ExplainInside(address);
    } else if (byte >= arena->outside_ && byte < arena->outside_ + arena->bytes_) {
      if (current_operation == nullptr) {
        WriteLine({device, ": the host followed an address of the device's memory\n"});
      } else {
        WriteLine({device, ": the operation ", current_operation,
                   " followed an address that its launcher has not translated\n"});
      }
    }
  }
}

void DeviceArena::ExplainInside(const void* address) const {
  const char* found = " used memory in no block: beyond an end, freed, or not allocated yet\n";
  if (of_peer_)
    found = IsReadable(address)
                ? " wrote to memory of another process, which may only be read\n"
                : " used memory of another process in no block: beyond an end, or released\n";
  WriteLine({device_.c_str(), ": the operation ",
             current_operation == nullptr ? "" : current_operation, found});
}

const char* CurrentOperation() {
  return current_operation;
}

RunningOperation::RunningOperation(const std::string& name) {
  current_operation = name.c_str();
}

RunningOperation::~RunningOperation() {
  current_operation = nullptr;
}

}  // namespace psd::emulated

#ifdef PSD_ASAN
// AddressSanitizer calls this function when it has found an error.
extern "C" void __asan_on_error() {
  const char* const operation = psd::emulated::CurrentOperation();
  if (operation != nullptr) std::fprintf(stderr, "The error is in the operation %s\n", operation);
}
#endif
