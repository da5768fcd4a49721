#include "examples/fashion_mnist/progress.h"

#include <cstdio>
#include <string>

#include "gtest/gtest.h"

namespace psd::examples {
namespace {

const absl::Time kStart = absl::UnixEpoch();

std::string ReadBack(std::FILE* file) {
  std::rewind(file);
  std::string text;
  for (int c = std::fgetc(file); c != EOF; c = std::fgetc(file)) text += static_cast<char>(c);
  return text;
}

TEST(Progress, LinesAreStable) {
  ProgressReport report;
  report.epoch = 2;
  report.epochs = 4;
  report.step = 312;
  report.steps = 936;
  report.loss = 0.41234;
  report.images_per_s = 15230.4;
  report.left = absl::Seconds(12.3);
  EXPECT_EQ(ProgressForPeople(report),
            "epoch 2/4  step 312/936  loss 0.4123  15230 images/s  13 s left");
  EXPECT_EQ(ProgressForPrograms(report),
            "progress epoch=2 epochs=4 step=312 steps=936 loss=0.4123 images_per_s=15230 "
            "left_s=12.3");
}

TEST(Progress, NothingDoneYet) {
  const ProgressMeter meter(2, 10, absl::InfiniteDuration(), kStart);
  const ProgressReport report = meter.Report(kStart);
  EXPECT_EQ(report.epoch, 1);
  EXPECT_EQ(report.step, 0);
  EXPECT_EQ(report.images_per_s, 0);
  EXPECT_EQ(report.left, absl::ZeroDuration());
}

TEST(Progress, RateAndTimeLeft) {
  ProgressMeter meter(2, 10, absl::InfiniteDuration(), kStart);
  for (int i = 0; i < 10; ++i) meter.AddStep(100, 1.0);
  const ProgressReport report = meter.Report(kStart + absl::Seconds(2));
  EXPECT_EQ(report.epoch, 1);  // the tenth step still belongs to the first epoch
  EXPECT_DOUBLE_EQ(report.images_per_s, 500);
  EXPECT_EQ(report.left, absl::Seconds(2));
  EXPECT_EQ(meter.images(), 1000);
  meter.AddStep(100, 1.0);
  EXPECT_EQ(meter.Report(kStart + absl::Seconds(2)).epoch, 2);
}

TEST(Progress, TimeLimitShortensTimeLeft) {
  ProgressMeter meter(10, 100, absl::Seconds(5), kStart);
  meter.AddStep(1, 1.0);
  EXPECT_EQ(meter.Report(kStart + absl::Seconds(2)).left, absl::Seconds(3));
  EXPECT_FALSE(meter.OutOfTime(kStart + absl::Seconds(4)));
  EXPECT_TRUE(meter.OutOfTime(kStart + absl::Seconds(5)));
  EXPECT_EQ(meter.Report(kStart + absl::Seconds(9)).left, absl::ZeroDuration());
}

TEST(Progress, LossIsSmoothedFromTheFirstStepOn) {
  ProgressMeter meter(1, 10, absl::InfiniteDuration(), kStart);
  meter.AddStep(1, 2.0);
  EXPECT_DOUBLE_EQ(meter.Report(kStart).loss, 2.0);
  meter.AddStep(1, 1.0);
  EXPECT_DOUBLE_EQ(meter.Report(kStart).loss, 1.95);
}

TEST(Progress, PrintsPlainLinesToAFileAndNotTooOften) {
  std::FILE* file = std::tmpfile();
  ASSERT_NE(file, nullptr);
  ProgressMeter meter(1, 10, absl::InfiniteDuration(), kStart);
  ProgressPrinter printer(file, ProgressStyle::kAuto);
  meter.AddStep(100, 1.0);
  printer.Update(meter, kStart + absl::Seconds(1));
  printer.Update(meter, kStart + absl::Seconds(1.1));
  printer.Finish(meter, kStart + absl::Seconds(1.2));
  EXPECT_EQ(ReadBack(file),
            "epoch 1/1  step 1/10  loss 1.0000  100 images/s  9 s left\n"
            "epoch 1/1  step 1/10  loss 1.0000  83 images/s  11 s left\n");
  std::fclose(file);
}

}  // namespace
}  // namespace psd::examples
