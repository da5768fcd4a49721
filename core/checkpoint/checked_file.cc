#include "core/checkpoint/checked_file.h"

#include <deque>
#include <functional>
#include <thread>
#include <utility>

#include "core/base/mutex.h"
#include "core/base/status.h"
#include "core/checkpoint/sha256.h"

namespace psd::checkpoint {
namespace {

// Applies a function to buffers, in order, on a thread of its own. After the function's first error
// nothing more is applied.
class BufferWorker {
 public:
  explicit BufferWorker(std::function<absl::Status(const Buffer&)> apply)
      : apply_(std::move(apply)), thread_([this] { Run(); }) {}
  // What still waits is not applied.
  ~BufferWorker() {
    {
      MutexLock lock(mutex_);
      waiting_.clear();
    }
    Stop().IgnoreError();
  }

  // Waits for room. Errors: the function's.
  absl::Status Give(Buffer buffer) PSD_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    while (waiting_bytes_ > kMaxWaitingBytes && status_.ok()) changed_.Wait(mutex_);
    waiting_bytes_ += buffer.size();
    waiting_.push_back(std::move(buffer));
    changed_.NotifyAll();
    return status_;
  }

  // Returns when all is applied, or the first error.
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

 private:
  void Run() PSD_EXCLUDES(mutex_) {
    while (true) {
      Buffer next;
      {
        MutexLock lock(mutex_);
        while (waiting_.empty() && !stopping_) changed_.Wait(mutex_);
        if (waiting_.empty() || !status_.ok()) return;
        next = std::move(waiting_.front());
        waiting_.pop_front();
      }
      absl::Status applied = apply_(next);
      MutexLock lock(mutex_);
      waiting_bytes_ -= next.size();
      if (!applied.ok()) status_ = std::move(applied);
      changed_.NotifyAll();
      if (!status_.ok()) return;
    }
  }

  const std::function<absl::Status(const Buffer&)> apply_;
  Mutex mutex_;  // leaf
  CondVar changed_;
  std::deque<Buffer> waiting_ PSD_GUARDED_BY(mutex_);
  size_t waiting_bytes_ PSD_GUARDED_BY(mutex_) = 0;  // what is being applied counts
  bool stopping_ PSD_GUARDED_BY(mutex_) = false;
  absl::Status status_ PSD_GUARDED_BY(mutex_);
  std::thread thread_;  // last: it uses all of the above
};

class CheckedFileImpl : public CheckedFile {
 public:
  CheckedFileImpl(std::unique_ptr<WritableFile> file, std::string name)
      : file_(std::move(file)),
        hasher_([this](const Buffer& buffer) {
          hash_.Add(buffer.view());
          return absl::OkStatus();
        }),
        writer_([this](const Buffer& buffer) { return file_->Append(buffer.view()); }) {
    saved_.name = std::move(name);
  }

  absl::Status Append(Buffer bytes) override {
    if (bytes.empty()) return absl::OkStatus();
    saved_.bytes += bytes.size();
    PSD_RETURN_IF_ERROR(hasher_.Give(bytes));
    return writer_.Give(std::move(bytes));
  }

  absl::StatusOr<SavedFile> Finish() override {
    PSD_RETURN_IF_ERROR(writer_.Stop());
    PSD_RETURN_IF_ERROR(file_->Sync());
    PSD_RETURN_IF_ERROR(hasher_.Stop());
    saved_.sha256 = hash_.Finish();
    return saved_;
  }

 private:
  SavedFile saved_;
  const std::unique_ptr<WritableFile> file_;  // the writer's, until it has stopped
  Sha256 hash_;                               // the hasher's, until it has stopped
  BufferWorker hasher_;
  BufferWorker writer_;
};

}  // namespace

std::unique_ptr<CheckedFile> CheckedFile::Start(std::unique_ptr<WritableFile> file,
                                                std::string name) {
  return std::make_unique<CheckedFileImpl>(std::move(file), std::move(name));
}

}  // namespace psd::checkpoint
