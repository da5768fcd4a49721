#pragma once

// An optimizer that several trainers step in turn, without a worker.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "core/base/ids.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/owner/owner_optimizer.h"
#include "core/optim/steps/step_request.h"
#include "core/store/store.h"
#include "tests/core/optim/owner/owner_fixture.h"

namespace psd::optim {

// The trainers have numbers from 1.
class RoundTest : public OwnerOptimizerTest {
 protected:
  void Make(UpdateMode mode) {
    a_ = NewParameter("a", Full(0));
    OptimizerSettings settings;
    settings.mode = mode;
    optimizer_ = *NewOptimizer({"sgd", {{"lr", 1}}}, {a_}, settings);
  }
  // Trainer n steps with a gradient of -n. The answer goes to answers_[n].
  GlobalId Offer(uint64_t n, GlobalId id = {}, const StepTerms& terms = {}) {
    StepRequest request;
    request.step_id = id.IsNone() ? ids_.Next() : id;
    request.ticket = ++last_ticket_;
    request.life = life_;
    request.member = {Session(n), std::string(1, static_cast<char>('a' + n))};
    request.plan = *optimizer_->table().Plan({{a_->id, Full(-static_cast<double>(n))}});
    request.terms = terms;
    request.seats = Seats(n);
    request.round = Place(n);
    request.begin_apply = [this] { return may_apply_; };
    request.done = [this, n](absl::StatusOr<StepResult> result) {
      answers_[n].push_back(std::move(result));
    };
    const GlobalId step = request.step_id;
    optimizer_->Step(std::move(request));
    return step;
  }

  // Trainer n measures a step in the round that it has a turn of; its answer goes to measured_[n].
  void Measure(uint64_t n, GlobalId step) {
    StepRequest request;
    request.step_id = step;
    request.seats = Seats(n);
    request.round = Place(n);
    request.member = {Session(n), std::string(1, static_cast<char>('a' + n))};
    request.plan = *optimizer_->table().Plan({{a_->id, Full(static_cast<double>(n))}});
    optimizer_->Measure(std::move(request), [this, n](const absl::StatusOr<double>& sum) {
      measured_[n].push_back(sum);
    });
  }
  // Trainer n asks for a turn; the answer goes to turns_[n].
  void TakeTurn(uint64_t n, uint64_t turn, uint64_t ended_before, bool measures = false) {
    StepRequest request;
    request.step_id = {n, turn};
    request.ended_before = ended_before;
    request.measures = measures;
    request.seats = Seats(n);
    request.member = {Session(n), std::string(1, static_cast<char>('a' + n))};
    request.done = [this, n, turn](const absl::StatusOr<StepResult>& result) {
      turns_[n].push_back(result.status());
      if (result.ok()) places_[n] = {{n, turn}, turn, result->round};
    };
    optimizer_->TakeTurn(std::move(request));
  }
  // The present session of trainer n.
  GlobalId Session(uint64_t n) const {
    const auto epoch = epochs_.find(n);
    return {n, epoch == epochs_.end() ? 1 : epoch->second};
  }
  // The number of seats that trainer n steps for.
  uint32_t Seats(uint64_t n) const {
    const auto seats = seats_.find(n);
    return seats == seats_.end() ? 1 : seats->second;
  }
  // The place of trainer n in the last round that the lead has named for it.
  RoundPlace Place(uint64_t n) const {
    const auto place = places_.find(n);
    return place == places_.end() ? RoundPlace{} : place->second;
  }
  // The lead names a round of trainers 1 and 2.
  void NameRound(uint64_t turn, bool measures = false) {
    TakeTurn(1, turn, turn, measures);
    TakeTurn(2, turn + 1, turn + 1, measures);
  }
  absl::StatusCode LastCode(uint64_t n) { return answers_[n].back().status().code(); }

  store::EntryPtr a_;
  std::shared_ptr<OwnerOptimizer> optimizer_;
  std::map<uint64_t, std::vector<absl::Status>> turns_;
  std::map<uint64_t, std::vector<absl::StatusOr<double>>> measured_;
  std::map<uint64_t, uint64_t> epochs_;  // for the trainers whose session is not their first
  std::map<uint64_t, RoundPlace> places_;
  std::map<uint64_t, uint32_t> seats_;  // for the trainers that step for several
  std::map<uint64_t, std::vector<absl::StatusOr<StepResult>>> answers_;
  uint64_t last_ticket_ = 0;
  GlobalId life_;  // the life that offered steps belong to
  bool may_apply_ = true;
};

}  // namespace psd::optim
