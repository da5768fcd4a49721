#include "bench/group_floors.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "bench/rank_links.h"
#include "core/base/clock.h"
#include "core/base/status.h"

namespace psd::bench {

GroupFloor::Arithmetic::Arithmetic(size_t elements)
    : parameters(elements),
      coefficients(elements),
      first_moments(elements),
      second_moments(elements),
      next(elements) {}

absl::StatusOr<std::unique_ptr<GroupFloor>> GroupFloor::Create(const std::string& task,
                                                               const std::string& way, int ranks,
                                                               size_t elements) {
  std::unique_ptr<GroupFloor> floor(new GroupFloor(ranks, elements));
  floor->work_ = floor->WorkOf(task);
  if (floor->work_ == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("there is no floor of '", task, "'"));
  if (task != "allreduce") {
    for (int rank = 0; rank < ranks; ++rank)
      floor->arithmetic_.push_back(std::make_unique<Arithmetic>(elements));
  }
  const size_t count = floor->floats_.ranks();
  if (way == "memory") {
    floor->exchange_ = ExchangeInMemory(floor->floats_);
  } else if (way == "tcp") {
    PSD_ASSIGN_OR_RETURN(auto links, LinkOverTcp(count));
    floor->exchange_ = ExchangeOver(std::move(links), floor->floats_);
  } else if (way == "grpc") {
    PSD_ASSIGN_OR_RETURN(auto links, LinkOverGrpc(count));
    floor->exchange_ = ExchangeOver(std::move(links), floor->floats_);
  } else {
    return absl::InvalidArgumentError(absl::StrCat("'", way, "' joins no ranks"));
  }
  return floor;
}

GroupFloor::Work GroupFloor::WorkOf(const std::string& task) {
  const size_t all = floats_.elements();
  const auto all_reduce = [this](size_t rank) {
    exchange_->ReduceScatter(rank);
    exchange_->AllGather(rank);
  };
  if (task == "allreduce") return all_reduce;
  if (task == "ddp_step") {
    return [this, all, all_reduce](size_t rank) {
      const Arithmetic& on = *arithmetic_[rank];
      Consume(StepMath(on.parameters.data(), on.coefficients.data(), floats_.input(rank), all));
      all_reduce(rank);
      UpdateR4W3(on.parameters.data(), floats_.result(rank), on.first_moments.data(),
                 on.second_moments.data(), on.next.data(), all);
    };
  }
  if (task == "zero_step") {
    return [this](size_t rank) {
      const Arithmetic& on = *arithmetic_[rank];
      const size_t first = floats_.FirstOf(rank);
      UpdateR4W3(on.parameters.data() + first, floats_.input(rank) + first,
                 on.first_moments.data() + first, on.second_moments.data() + first,
                 floats_.result(rank) + first, floats_.SizeOf(rank));
      exchange_->AllGather(rank);
    };
  }
  return nullptr;
}

std::vector<double> GroupFloor::Run(int times) const {
  std::vector<std::thread> others;
  for (size_t rank = 1; rank < floats_.ranks(); ++rank) {
    others.emplace_back([this, rank, times] {
      for (int i = 0; i < times; ++i) work_(rank);
    });
  }
  std::vector<double> seconds;
  for (int i = 0; i < times; ++i) {
    const absl::Time start = Clock::Steady().Now();
    work_(0);
    seconds.push_back(absl::ToDoubleSeconds(Clock::Steady().Now() - start));
  }
  for (std::thread& other : others) other.join();
  return seconds;
}

}  // namespace psd::bench
