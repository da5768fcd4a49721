#include "core/optim/options/schedule.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "core/base/status.h"
#include "core/optim/functional/optimizer_spec.h"

namespace psd::optim {
namespace {

constexpr double kPi = 3.14159265358979323846;

absl::Status Require(bool holds, const char* field, double value, const char* range) {
  if (holds) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("schedule: ", field, " = ", ShortestText(value), ", but it must be ", range));
}

// Returns the value between `start` and `end` after the fraction `done`, along a line or half a
// cosine.
double Anneal(bool linear, double start, double end, double done) {
  return linear ? start + (end - start) * done
                : end + (start - end) / 2 * (1 + std::cos(kPi * done));
}

// Returns the value at `step` of a one-cycle schedule that goes from `start` to `middle`, which is
// reached when the learning rate is highest, and then to `end`. The steps are counted as in
// PyTorch's OneCycleLR: the first phase ends at step rise * period - 1, the second at period - 1.
double CycleValue(const Schedule& schedule, uint64_t step, double start, double middle,
                  double end) {
  const auto period = static_cast<double>(schedule.period);
  const double last = period - 1, top = schedule.rise * period - 1;
  const double t = std::min(static_cast<double>(step), last);
  if (t <= top) return Anneal(schedule.linear, start, middle, top > 0 ? t / top : 1);
  return Anneal(schedule.linear, middle, end, last > top ? (t - top) / (last - top) : 1);
}

std::string OneCycleText(const Schedule& schedule) {
  std::string text =
      absl::StrCat("one_cycle(period=", schedule.period, ", rise=", ShortestText(schedule.rise),
                   ", initial_divisor=", ShortestText(schedule.initial_divisor),
                   ", final_divisor=", ShortestText(schedule.final_divisor));
  if (schedule.cycle_momentum) {
    absl::StrAppend(&text, ", momentum=", ShortestText(schedule.highest_momentum), " to ",
                    ShortestText(schedule.lowest_momentum));
  }
  return absl::StrCat(text, schedule.linear ? ", linear)" : ")");
}

}  // namespace

Schedule Schedule::Step(uint64_t period, double gamma) {
  Schedule schedule;
  schedule.kind = Kind::kStep;
  schedule.period = period;
  schedule.gamma = gamma;
  return schedule;
}

Schedule Schedule::Exponential(double gamma) {
  Schedule schedule;
  schedule.kind = Kind::kExponential;
  schedule.gamma = gamma;
  return schedule;
}

Schedule Schedule::Cosine(uint64_t period, double lowest) {
  Schedule schedule;
  schedule.kind = Kind::kCosine;
  schedule.period = period;
  schedule.lowest = lowest;
  return schedule;
}

Schedule Schedule::OneCycle(uint64_t period) {
  Schedule schedule;
  schedule.kind = Kind::kOneCycle;
  schedule.period = period;
  return schedule;
}

Schedule Schedule::WithWarmup(uint64_t steps, double start) const {
  Schedule schedule = *this;
  schedule.warmup_steps = steps;
  schedule.warmup_start = start;
  return schedule;
}

absl::Status Schedule::Check() const {
  const auto in = [](double value, double least, double most) {
    return value >= least && value <= most;  // false for a NaN
  };
  constexpr double kMost = 1e300;
  PSD_RETURN_IF_ERROR(Require(kind >= Kind::kConstant && kind <= Kind::kOneCycle, "kind",
                              static_cast<double>(kind), "1 to 5"));
  PSD_RETURN_IF_ERROR(Require(period >= 1, "period", static_cast<double>(period), "at least 1"));
  PSD_RETURN_IF_ERROR(Require(in(gamma, 0, 1), "gamma", gamma, "0 to 1"));
  PSD_RETURN_IF_ERROR(Require(in(lowest, 0, kMost), "lowest", lowest, "finite and at least 0"));
  PSD_RETURN_IF_ERROR(Require(in(rise, 0, 1), "rise", rise, "0 to 1"));
  PSD_RETURN_IF_ERROR(
      Require(in(initial_divisor, 1, kMost), "initial_divisor", initial_divisor, "at least 1"));
  PSD_RETURN_IF_ERROR(
      Require(in(final_divisor, 1, kMost), "final_divisor", final_divisor, "at least 1"));
  PSD_RETURN_IF_ERROR(Require(!cycle_momentum || kind == Kind::kOneCycle, "cycle_momentum", 1,
                              "0 but for one cycle"));
  PSD_RETURN_IF_ERROR(Require(lowest_momentum > 0 && lowest_momentum <= highest_momentum,
                              "lowest_momentum", lowest_momentum,
                              "above 0 and at most highest_momentum"));
  PSD_RETURN_IF_ERROR(
      Require(highest_momentum < 1, "highest_momentum", highest_momentum, "below 1"));
  return Require(in(warmup_start, 0, 1), "warmup_start", warmup_start, "0 to 1");
}

double Schedule::LearningRate(double base, uint64_t step) const {
  if (step < warmup_steps) {
    const double done = static_cast<double>(step) / static_cast<double>(warmup_steps);
    return base * (warmup_start + (1 - warmup_start) * done);
  }
  step -= warmup_steps;
  const auto t = static_cast<double>(step);
  switch (kind) {
    case Kind::kConstant:
      return base;
    case Kind::kStep:
      return base * std::pow(gamma, static_cast<double>(step / period));
    case Kind::kExponential:
      return base * std::pow(gamma, t);
    case Kind::kCosine:
      return lowest + (base - lowest) * (1 + std::cos(kPi * t / static_cast<double>(period))) / 2;
    case Kind::kOneCycle: {
      const double initial = base / initial_divisor;
      return CycleValue(*this, step, initial, base, initial / final_divisor);
    }
  }
  return base;
}

double Schedule::Momentum(uint64_t step) const {
  return CycleValue(*this, step - std::min(step, warmup_steps), highest_momentum, lowest_momentum,
                    highest_momentum);
}

std::string Schedule::ToString() const {
  std::string text;
  switch (kind) {
    case Kind::kConstant:
      text = "constant";
      break;
    case Kind::kStep:
      text = absl::StrCat("step(period=", period, ", gamma=", ShortestText(gamma), ")");
      break;
    case Kind::kExponential:
      text = absl::StrCat("exponential(gamma=", ShortestText(gamma), ")");
      break;
    case Kind::kCosine:
      text = absl::StrCat("cosine(period=", period, ", lowest=", ShortestText(lowest), ")");
      break;
    case Kind::kOneCycle:
      text = OneCycleText(*this);
      break;
  }
  if (warmup_steps == 0) return text;
  return absl::StrCat(text, " after warmup(", warmup_steps, ", from ", ShortestText(warmup_start),
                      ")");
}

}  // namespace psd::optim
