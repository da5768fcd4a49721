// save: saves a whole job to disk while training stands still; the owner writes its own files.
// Floor: the same bytes are written to one file in the same folder and flushed to disk.
// save_stream: a save whose bytes go through the worker that asks for it. Floor: the same file; its
// bytes are received over a bare TCP connection, one piece while the piece before it is written.
// save_steps: a train step while saves of the first kind run one after the other. Floor: the same
// step without saves.

#include <stdlib.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "bench/job.h"
#include "bench/stats.h"
#include "bench/train_step.h"
#include "bench/wire_floors.h"
#include "bench/workloads/cases.h"
#include "client/checkpoint.h"
#include "core/base/buffer.h"
#include "core/base/clock.h"
#include "core/base/status.h"
#include "core/checkpoint/file_system.h"

namespace psd::bench {
namespace {

constexpr StepShape kModel = {16, 2'000'000};  // 128 MB, and twice as much state
constexpr int kSteps = 12;
constexpr size_t kFloorPiece = size_t{4} << 20;

// A new folder, which is removed at the end.
class Scratch {
 public:
  Scratch() : path_(std::filesystem::temp_directory_path() / "psd-bench-XXXXXX") {}
  ~Scratch() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  absl::Status Make() {
    if (::mkdtemp(path_.data()) != nullptr) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat("cannot make ", path_));
  }
  // Empties the folder, and waits until this has reached the disk, so that later writes need not
  // wait for it.
  absl::Status Empty() {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(path_, error))
      std::filesystem::remove_all(entry.path(), error);
    if (error) return absl::UnavailableError(absl::StrCat("cannot empty ", path_));
    return checkpoint::FileSystem::Posix()->SyncFolder(path_);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// A new file that takes pieces of kFloorPiece bytes, each from memory that can be written directly.
class FloorFile {
 public:
  absl::Status Create(const std::string& folder) {
    PSD_ASSIGN_OR_RETURN(file_,
                         checkpoint::FileSystem::Posix()->Create(absl::StrCat(folder, "/floor")));
    for (std::shared_ptr<Block>& piece : pieces_) {
      PSD_ASSIGN_OR_RETURN(piece, NewHeapAllocator()->Allocate(kFloorPiece));
      std::memset(piece->data(), 'p', kFloorPiece);
    }
    return absl::OkStatus();
  }
  // Two pieces take turns, so that one can be filled while the other is written.
  std::byte* piece(size_t number) { return pieces_[number % 2]->data(); }
  absl::Status Write(size_t number, size_t bytes) {
    return file_->Append({reinterpret_cast<const char*>(piece(number)), bytes});
  }
  absl::Status Sync() { return file_->Sync(); }

 private:
  std::unique_ptr<checkpoint::WritableFile> file_;
  std::shared_ptr<Block> pieces_[2];
};

absl::Status WriteOnly(FloorFile& file, uint64_t bytes) {
  for (size_t i = 0; bytes > 0; ++i) {
    const auto size = static_cast<size_t>(std::min<uint64_t>(kFloorPiece, bytes));
    PSD_RETURN_IF_ERROR(file.Write(i, size));
    bytes -= size;
  }
  return file.Sync();
}

absl::Status ReceiveAndWrite(TcpFloor& wire, FloorFile& file, uint64_t bytes) {
  PSD_RETURN_IF_ERROR(wire.Ask(bytes));
  std::future<absl::Status> written;  // the result for the piece before
  for (size_t i = 0; bytes > 0; ++i) {
    const auto size = static_cast<size_t>(std::min<uint64_t>(kFloorPiece, bytes));
    PSD_RETURN_IF_ERROR(wire.Receive(file.piece(i), size));
    if (written.valid()) PSD_RETURN_IF_ERROR(written.get());
    written = std::async(std::launch::async, [&file, i, size] { return file.Write(i, size); });
    bytes -= size;
  }
  PSD_RETURN_IF_ERROR(written.get());
  return file.Sync();
}

// Lets an owner write its files of saves into `scratch`.
std::string RootFlag(const Scratch& scratch) {
  return absl::StrCat("--checkpoint_root=", scratch.path());
}

class Saving : public Workload {
 public:
  explicit Saving(bool over_the_wire) : over_the_wire_(over_the_wire) {}

  absl::Status Start(const Environment& environment) override {
    PSD_RETURN_IF_ERROR(scratch_.Make());
    if (over_the_wire_) {
      PSD_ASSIGN_OR_RETURN(wire_, TcpFloor::Start(environment, 0));
    }
    std::vector<std::string> flags;
    if (!over_the_wire_) flags.push_back(RootFlag(scratch_));
    PSD_ASSIGN_OR_RETURN(job_, Job::Start(environment, flags));
    PSD_ASSIGN_OR_RETURN(step_, TrainStep::Create(job_->worker(), kModel, Adam{}));
    PSD_RETURN_IF_ERROR(step_->Run());
    return RunPsd().status();
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    PSD_RETURN_IF_ERROR(scratch_.Empty());
    const absl::Time start = Clock::Steady().Now();
    SaveOptions options;
    options.dir = scratch_.path();
    PSD_ASSIGN_OR_RETURN(SaveSummary saved, SaveModel(job_->worker(), options));
    if (!saved.streamed.empty()) return absl::InternalError(saved.streamed[0]);
    bytes_ = saved.bytes;
    const double seconds = absl::ToDoubleSeconds(Clock::Steady().Now() - start);
    return std::vector<double>{seconds / static_cast<double>(bytes_)};
  }

  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_RETURN_IF_ERROR(scratch_.Empty());
    FloorFile file;
    PSD_RETURN_IF_ERROR(file.Create(scratch_.path()));
    const absl::Time start = Clock::Steady().Now();
    PSD_RETURN_IF_ERROR(over_the_wire_ ? ReceiveAndWrite(*wire_, file, bytes_)
                                       : WriteOnly(file, bytes_));
    const double seconds = absl::ToDoubleSeconds(Clock::Steady().Now() - start);
    return seconds / static_cast<double>(bytes_);
  }

 private:
  const bool over_the_wire_;
  Scratch scratch_;
  std::unique_ptr<TcpFloor> wire_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<TrainStep> step_;
  uint64_t bytes_ = 0;
};

class SteppingWhileSaving : public Workload {
 public:
  absl::Status Start(const Environment& environment) override {
    PSD_RETURN_IF_ERROR(scratch_.Make());
    PSD_ASSIGN_OR_RETURN(job_, Job::Start(environment, {RootFlag(scratch_)}));
    PSD_ASSIGN_OR_RETURN(saver_, Attach("saver", job_->address()));
    PSD_ASSIGN_OR_RETURN(step_, TrainStep::Create(job_->worker(), kModel, Adam{}));
    return RunFloor().status();
  }

  absl::StatusOr<std::vector<double>> RunPsd() override {
    std::atomic<bool> stop{false};
    absl::Status saved;
    std::thread saving([&] {
      while (!stop && saved.ok()) saved = SaveOnce(stop);
    });
    auto times = TimeEach(kSteps, [this] { return step_->Run(); });
    stop = true;
    saving.join();
    PSD_RETURN_IF_ERROR(saved);
    return times;
  }

  absl::StatusOr<std::optional<double>> RunFloor() override {
    PSD_ASSIGN_OR_RETURN(std::vector<double> times,
                         TimeEach(kSteps, [this] { return step_->Run(); }));
    return Median(std::move(times));
  }

 private:
  absl::Status SaveOnce(const std::atomic<bool>& stop) {
    PSD_RETURN_IF_ERROR(scratch_.Empty());
    SaveOptions options;
    options.dir = scratch_.path();
    options.progress = [&stop](const TransferProgress&) { return !stop; };
    absl::Status saved = SaveModel(*saver_, options).status();
    return absl::IsCancelled(saved) ? absl::OkStatus() : saved;
  }

  Scratch scratch_;
  std::unique_ptr<Job> job_;
  std::unique_ptr<Worker> saver_;
  std::unique_ptr<TrainStep> step_;
};

Case SaveCase(const char* name, bool over_the_wire) {
  Case save;
  save.name = name;
  save.unit = {"GB/s", 1e-9, /*rate=*/true};
  save.has_peer = false;
  save.make = [over_the_wire] { return std::make_unique<Saving>(over_the_wire); };
  return save;
}

}  // namespace

std::vector<Case> SavingCases() {
  Case steps;
  steps.name = "save_steps";
  steps.unit = {"ms", 1e3};
  steps.has_peer = false;
  steps.make = [] { return std::make_unique<SteppingWhileSaving>(); };
  return {SaveCase("save", false), SaveCase("save_stream", true), steps};
}

}  // namespace psd::bench
