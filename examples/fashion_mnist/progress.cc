#include "examples/fashion_mnist/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/strings/str_format.h"

namespace psd::examples {
namespace {

constexpr double kSmoothing = 0.05;  // weight of the newest step's loss
constexpr absl::Duration kLiveInterval = absl::Milliseconds(200);
constexpr absl::Duration kLinesInterval = absl::Seconds(2);

absl::Duration Interval(ProgressStyle style, bool live) {
  return live || style == ProgressStyle::kPrograms ? kLiveInterval : kLinesInterval;
}

}  // namespace

std::string ProgressForPeople(const ProgressReport& report) {
  return absl::StrFormat("epoch %d/%d  step %d/%d  loss %.4f  %.0f %s/s  %.0f s left", report.epoch,
                         report.epochs, report.step, report.steps, report.loss, report.images_per_s,
                         report.unit, std::ceil(absl::ToDoubleSeconds(report.left)));
}

std::string ProgressForPrograms(const ProgressReport& report) {
  return absl::StrFormat(
      "progress epoch=%d epochs=%d step=%d steps=%d loss=%.4f %s_per_s=%.0f left_s=%.1f",
      report.epoch, report.epochs, report.step, report.steps, report.loss, report.unit,
      report.images_per_s, absl::ToDoubleSeconds(report.left));
}

ProgressMeter::ProgressMeter(int epochs, int64_t steps_per_epoch, absl::Duration limit,
                             absl::Time start, std::string unit)
    : epochs_(epochs),
      steps_per_epoch_(steps_per_epoch),
      limit_(limit),
      start_(start),
      unit_(std::move(unit)) {}

void ProgressMeter::AddStep(int64_t images, double loss) {
  loss_ = step_ == 0 ? loss : loss_ + kSmoothing * (loss - loss_);
  ++step_;
  images_ += images;
}

ProgressReport ProgressMeter::Report(absl::Time now) const {
  const absl::Duration elapsed = std::max(now - start_, absl::ZeroDuration());
  ProgressReport report;
  report.unit = unit_;
  report.epochs = epochs_;
  report.epoch = static_cast<int>(std::max<int64_t>(step_ - 1, 0) / steps_per_epoch_) + 1;
  report.step = step_;
  report.steps = epochs_ * steps_per_epoch_;
  report.loss = loss_;
  const double seconds = absl::ToDoubleSeconds(elapsed);
  report.images_per_s = seconds > 0 ? static_cast<double>(images_) / seconds : 0;
  const double per_step = step_ > 0 ? seconds / static_cast<double>(step_) : 0;
  report.left = absl::Seconds(per_step * static_cast<double>(report.steps - step_));
  report.left = std::max(std::min(report.left, limit_ - elapsed), absl::ZeroDuration());
  return report;
}

ProgressPrinter::ProgressPrinter(std::FILE* out, ProgressStyle style)
    : out_(out),
      style_(style),
      live_(style == ProgressStyle::kAuto && isatty(fileno(out)) == 1),
      interval_(Interval(style, live_)) {}

void ProgressPrinter::Update(const ProgressMeter& meter, absl::Time now) {
  if (now - last_ < interval_) return;
  last_ = now;
  Print(meter.Report(now));
}

void ProgressPrinter::Finish(const ProgressMeter& meter, absl::Time now) {
  Print(meter.Report(now));
  if (live_) std::fputc('\n', out_);
}

void ProgressPrinter::Print(const ProgressReport& report) {
  const std::string line =
      style_ == ProgressStyle::kPrograms ? ProgressForPrograms(report) : ProgressForPeople(report);
  std::fprintf(out_, live_ ? "\r%s\x1b[K" : "%s\n", line.c_str());
  std::fflush(out_);
}

}  // namespace psd::examples
