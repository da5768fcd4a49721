#include "core/checkpoint/checked_file.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <thread>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/start_thread.h"
#include "core/base/status.h"

namespace psd::checkpoint {
namespace {

// The number of bytes that are checksummed and then copied at a time, so that the copy finds them
// in the processor's cache.
constexpr size_t kCachedBytes = size_t{128} << 10;

}  // namespace

// Appends buffers to a file, in order, on a thread of its own, until the first error.
class CheckedFile::Writer {
 public:
  explicit Writer(std::unique_ptr<WritableFile> file) : file_(std::move(file)) {}
  // Buffers that are still waiting are not written.
  ~Writer() {
    {
      MutexLock lock(mutex_);
      waiting_.clear();
    }
    Stop().IgnoreError();
  }

  // Must be called before Give. Errors: RESOURCE_EXHAUSTED if the system refuses the thread.
  absl::Status Start() {
    PSD_ASSIGN_OR_RETURN(thread_,
                         StartThread("a thread that writes a file of a save", [this] { Run(); }));
    return absl::OkStatus();
  }

  // Hands a buffer to the thread, and waits if too many are waiting. Errors: those of the file.
  absl::Status Give(Buffer buffer) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (waiting_.size() >= kMaxWaitingPieces && status_.ok()) changed_.Wait(mutex_);
    waiting_.push_back(std::move(buffer));
    changed_.NotifyAll();
    return status_;
  }

  // Returns when everything is on the disk, or the first error.
  absl::Status Finish() {
    PSD_RETURN_IF_ERROR(Stop());
    return file_->Sync();
  }

 private:
  absl::Status Stop() PSD_EXCLUDES(mutex_) {
    {
      MutexLock lock(mutex_);
      stopping_ = true;
      changed_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
    MutexLock lock(mutex_);
    return status_;
  }

  void Run() PSD_EXCLUDES(mutex_) {
    while (true) {
      Buffer next;
      {
        MutexLock lock(mutex_);
        while (waiting_.empty() && !stopping_) changed_.Wait(mutex_);
        if (waiting_.empty()) return;
        next = std::move(waiting_.front());
        waiting_.pop_front();
        changed_.NotifyAll();
      }
      absl::Status written = file_->Append(next.view());
      if (written.ok()) continue;
      MutexLock lock(mutex_);
      status_ = std::move(written);
      changed_.NotifyAll();
      return;
    }
  }

  const std::unique_ptr<WritableFile> file_;  // used by the thread only, until it has stopped
  Mutex mutex_;                               // leaf
  CondVar changed_;
  std::deque<Buffer> waiting_ PSD_GUARDED_BY(mutex_);
  bool stopping_ PSD_GUARDED_BY(mutex_) = false;
  absl::Status status_ PSD_GUARDED_BY(mutex_);
  std::thread thread_;
};

std::shared_ptr<Allocator> NewPieceMemory() {
  HeapAllocatorOptions options;
  options.map_threshold_bytes = kFilePieceBytes;
  options.cache_bytes = 8 * kFilePieceBytes;
  return NewHeapAllocator(options);
}

absl::StatusOr<std::unique_ptr<CheckedFile>> CheckedFile::Start(std::unique_ptr<WritableFile> file,
                                                                std::string name,
                                                                std::shared_ptr<Allocator> memory) {
  auto writer = std::make_unique<Writer>(std::move(file));
  PSD_RETURN_IF_ERROR(writer->Start());
  return std::unique_ptr<CheckedFile>(
      new CheckedFile(std::move(writer), std::move(name), std::move(memory)));
}

CheckedFile::CheckedFile(std::unique_ptr<Writer> writer, std::string name,
                         std::shared_ptr<Allocator> memory)
    : memory_(std::move(memory)), writer_(std::move(writer)) {
  saved_.name = std::move(name);
}

CheckedFile::~CheckedFile() = default;

absl::Status CheckedFile::Append(absl::string_view bytes) {
  saved_.bytes += bytes.size();
  while (!bytes.empty()) {
    if (piece_ == nullptr) {
      PSD_ASSIGN_OR_RETURN(piece_, memory_->Allocate(kFilePieceBytes));
    }
    const absl::string_view part =
        bytes.substr(0, std::min(kFilePieceBytes - filled_, kCachedBytes));
    // The checksum is that of the copy, because lent bytes may change
    // (MemoryPlace::Kind::kForeign).
    std::byte* const copy = piece_->data() + filled_;
    std::memcpy(copy, part.data(), part.size());
    checksum_.Add({reinterpret_cast<const char*>(copy), part.size()});
    filled_ += part.size();
    bytes.remove_prefix(part.size());
    if (filled_ == kFilePieceBytes) PSD_RETURN_IF_ERROR(GivePiece());
  }
  return absl::OkStatus();
}

absl::StatusOr<SavedFile> CheckedFile::Finish() {
  if (filled_ > 0) PSD_RETURN_IF_ERROR(GivePiece());
  PSD_RETURN_IF_ERROR(writer_->Finish());
  saved_.xxh128 = checksum_.Digest();
  return saved_;
}

absl::Status CheckedFile::GivePiece() {
  return writer_->Give(Buffer(std::exchange(piece_, nullptr)).Slice(0, std::exchange(filled_, 0)));
}

}  // namespace psd::checkpoint
