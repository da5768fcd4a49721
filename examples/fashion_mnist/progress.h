#pragma once

// The progress of training: a meter counts it, and a printer shows it as one rewritten line on a
// terminal, as plain lines elsewhere, or as lines for another program.

#include <cstdint>
#include <cstdio>
#include <string>

#include "absl/time/time.h"

namespace psd::examples {

struct ProgressReport {
  int epoch = 0;  // from 1
  int epochs = 0;
  int64_t step = 0;  // of the whole training, from 1
  int64_t steps = 0;
  double loss = 0;  // smoothed over the last steps
  double images_per_s = 0;
  absl::Duration left;
  std::string unit = "images";  // the unit of images_per_s
};

// Returns, for example, "epoch 2/4  step 312/936  loss 0.4123  15230 images/s  12 s left".
std::string ProgressForPeople(const ProgressReport& report);
// Returns, for example,
// "progress epoch=2 epochs=4 step=312 steps=936 loss=0.4123 images_per_s=15230 left_s=12.3".
std::string ProgressForPrograms(const ProgressReport& report);

// Counts steps. Thread-compatible. The caller passes the times.
class ProgressMeter {
 public:
  // `limit` is the longest time of training; InfiniteDuration means no limit. Requires: epochs and
  // steps_per_epoch are positive.
  ProgressMeter(int epochs, int64_t steps_per_epoch, absl::Duration limit, absl::Time start,
                std::string unit = "images");

  void AddStep(int64_t images, double loss);
  ProgressReport Report(absl::Time now) const;
  int64_t images() const { return images_; }
  // Returns whether the time limit is reached.
  bool OutOfTime(absl::Time now) const { return now - start_ >= limit_; }

 private:
  const int epochs_;
  const int64_t steps_per_epoch_;
  const absl::Duration limit_;
  const absl::Time start_;
  const std::string unit_;
  int64_t step_ = 0;
  int64_t images_ = 0;
  double loss_ = 0;
};

enum class ProgressStyle {
  kAuto,      // one rewritten line on a terminal, plain lines elsewhere
  kPrograms,  // lines for another program
};

// Prints at most one report per interval. Thread-compatible.
class ProgressPrinter {
 public:
  // Requires: `out` stays open for as long as this object lives.
  ProgressPrinter(std::FILE* out, ProgressStyle style);
  // Prints if the interval has passed since the last time.
  void Update(const ProgressMeter& meter, absl::Time now);
  // Prints the last report and ends the rewritten line.
  void Finish(const ProgressMeter& meter, absl::Time now);

 private:
  void Print(const ProgressReport& report);

  std::FILE* const out_;
  const ProgressStyle style_;
  const bool live_;
  const absl::Duration interval_;
  absl::Time last_ = absl::InfinitePast();
};

}  // namespace psd::examples
