// Three trainers step an optimizer on three owners, one step at a time within a bound: the lead's
// rules of docs/decisions/0016-one-lead.md under random histories, with messages that overtake each
// other, calls that are given up and asked again, and trainers that die and are started again.
//
// The same world without a lead, in which every owner gives its own turns, shows that the histories
// are hard enough: it comes to a standstill.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "core/base/ids.h"
#include "core/optim/options/optimizer_config.h"
#include "core/optim/steps/step_gate.h"
#include "core/optim/steps/step_records.h"
#include "core/optim/steps/step_request.h"
#include "gtest/gtest.h"

namespace psd::optim {
namespace {

constexpr size_t kOwners = 3, kTrainers = 3, kLead = 0;
constexpr int kEvents = 400, kMostDeliveries = 10'000;

// One owner: what it does when messages come. Applies a step at once when its turn has come.
class Owner {
 public:
  Owner()
      : gate_(StepGate::Create(
            UpdateMode::BoundedStaleness(0, UpdateMode::WhenStale::kWait),
            [this](const StepRequest& request) { return Known(request); },
            [this](std::vector<StepRequest> steps) {
              for (StepRequest& step : steps) Apply(step);
            })) {}

  void Step(StepRequest request) {
    if (request.in_turn) return Apply(request);
    gate_->Submit(std::move(request));
  }
  StepGate& gate() { return *gate_; }
  void EndSession(GlobalId session) {
    records_.EndSession(session);
    gate_->Leave(session);
  }
  const std::vector<GlobalId>& applied() const { return applied_; }

 private:
  std::optional<absl::StatusOr<StepResult>> Known(const StepRequest& request) {
    const auto answer = records_.Find(request.member.session, request.step_id);
    if (answer == StepRecords::Answer::kNew) return std::nullopt;
    if (answer != StepRecords::Answer::kEnded) return absl::AbortedError("too late");
    if (request.takes_turn) return std::nullopt;
    return StepResult{};
  }
  void Apply(StepRequest& request) {
    if (auto known = Known(request); known.has_value()) return request.done(*std::move(known));
    records_.Acknowledge(request.step_id.incarnation, request.ended_before);
    records_.End(request.step_id);
    applied_.push_back(request.step_id);
    request.done(StepResult{});
  }

  StepRecords records_;
  std::vector<GlobalId> applied_;
  std::unique_ptr<StepGate> gate_;
};

class World {
 public:
  World(uint64_t seed, bool has_lead) : random_(seed), has_lead_(has_lead) {
    for (size_t i = 0; i < kTrainers; ++i) Start(trainers_[i]);
  }

  // What went wrong, or nothing.
  std::string Run() {
    for (int i = 0; i < kEvents; ++i) RandomEvent();
    // From here on nobody fails, and who computes no step leaves: everybody must come to an end.
    for (size_t i = 0; i <= kTrainers; ++i) {
      for (Trainer& trainer : trainers_)
        if (!trainer.waits) Die(trainer);
      for (int deliveries = 0; !messages_.empty(); ++deliveries) {
        if (deliveries == kMostDeliveries) return "messages without end";
        Deliver();
      }
    }
    for (const Trainer& trainer : trainers_)
      if (trainer.waits) return "a standstill: nothing is on its way, and a step waits";
    return CheckApplied();
  }

 private:
  struct Trainer {
    GlobalId session;
    uint64_t steps = 0;
    bool waits = false;
    uint64_t attempt = 0;  // answers to earlier ones are ignored
    std::set<size_t> pending;
  };
  using Message = std::function<void()>;

  size_t Draw(size_t below) { return random_() % below; }
  void Send(Message message) { messages_.push_back(std::move(message)); }
  // Any of those that are on their way: they overtake each other.
  void Deliver() {
    std::swap(messages_[Draw(messages_.size())], messages_.back());
    Message message = std::move(messages_.back());
    messages_.pop_back();
    message();
  }

  void Start(Trainer& trainer) {
    const uint64_t attempt = trainer.attempt;
    trainer = Trainer{};
    trainer.attempt = attempt + 1;
    trainer.session = {++incarnations_, 1};
  }

  void RandomEvent() {
    Trainer& trainer = trainers_[Draw(kTrainers)];
    switch (Draw(24)) {
      case 0:
        return Die(trainer);
      case 1:
        return GiveUp(trainer);
      case 2:
      case 3:
      case 4:
        if (!trainer.waits) NextStep(trainer);
        return;
      default:
        if (!messages_.empty()) Deliver();
    }
  }

  void Die(Trainer& trainer) {
    const GlobalId session = trainer.session;
    for (Owner& owner : owners_) Send([&owner, session] { owner.EndSession(session); });
    Start(trainer);
  }

  // The call's time is over; the same step is asked for again, or the next one.
  void GiveUp(Trainer& trainer) {
    if (!trainer.waits) return;
    if (has_lead_) EndTurn(StepOf(trainer));
    if (Draw(2) == 0) return NextStep(trainer);
    Ask(trainer);
  }

  void EndTurn(GlobalId step) {
    Send([this, step] { owners_[kLead].gate().EndTurn(step, /*applied=*/true); });
  }

  void NextStep(Trainer& trainer) {
    ++trainer.steps;
    trainer.waits = true;
    Ask(trainer);
  }

  GlobalId StepOf(const Trainer& trainer) const {
    return {trainer.session.incarnation, trainer.steps};
  }

  void Ask(Trainer& trainer) {
    ++trainer.attempt;
    trainer.pending.clear();
    if (!has_lead_) return AskAll(trainer, /*in_turn=*/false);
    StepRequest turn = Request(trainer);
    turn.takes_turn = true;
    turn.done = Answer(trainer, [this, &trainer](bool ok) {
      if (!ok) return Ask(trainer);
      AskAll(trainer, /*in_turn=*/true);
    });
    SendStep(kLead, std::move(turn));
  }

  void AskAll(Trainer& trainer, bool in_turn) {
    for (size_t i = 0; i < kOwners; ++i) trainer.pending.insert(i);
    for (size_t i = 0; i < kOwners; ++i) {
      StepRequest step = Request(trainer);
      step.in_turn = in_turn;
      step.done = Answer(trainer, [this, &trainer, i](bool ok) {
        if (!ok) return Ask(trainer);
        trainer.pending.erase(i);
        if (trainer.pending.empty()) End(trainer);
      });
      SendStep(i, std::move(step));
    }
  }

  void End(Trainer& trainer) {
    trainer.waits = false;
    ended_.insert(StepOf(trainer));
    if (has_lead_) EndTurn(StepOf(trainer));
  }

  StepRequest Request(const Trainer& trainer) {
    StepRequest request;
    request.step_id = StepOf(trainer);
    request.ended_before = trainer.steps;
    request.ticket = ++tickets_;
    request.member = {trainer.session, "trainer"};
    return request;
  }

  void SendStep(size_t owner, StepRequest request) {
    auto shared = std::make_shared<StepRequest>(std::move(request));  // a Message can be copied
    Send([this, owner, shared] { owners_[owner].Step(std::move(*shared)); });
  }

  // An answer travels too, and one to an attempt that was given up is not heard.
  absl::AnyInvocable<void(absl::StatusOr<StepResult>)> Answer(Trainer& trainer,
                                                              std::function<void(bool)> hear) {
    return [this, &trainer, attempt = trainer.attempt,
            hear = std::move(hear)](const absl::StatusOr<StepResult>& result) {
      Send([&trainer, attempt, hear, ok = result.ok()] {
        if (trainer.attempt == attempt) hear(ok);
      });
    };
  }

  std::string CheckApplied() const {
    for (const Owner& owner : owners_) {
      std::set<GlobalId> once(owner.applied().begin(), owner.applied().end());
      if (once.size() != owner.applied().size()) return "a step was applied twice";
      for (const GlobalId& step : ended_)
        if (once.count(step) == 0) return absl::StrCat("lost: ", step.ToString());
    }
    return "";
  }

  std::mt19937_64 random_;
  const bool has_lead_;
  uint64_t incarnations_ = 0, tickets_ = 0;
  Owner owners_[kOwners];
  Trainer trainers_[kTrainers];
  std::set<GlobalId> ended_;  // as their trainers heard
  std::vector<Message> messages_;
};

TEST(LeadSim, NobodyWaitsForEverAndEveryStepIsAppliedOnce) {
  for (uint64_t seed = 1; seed <= 5000; ++seed)
    ASSERT_EQ(World(seed, /*has_lead=*/true).Run(), "") << "seed " << seed;
}

TEST(LeadSim, OwnersThatEachGiveTheirOwnTurnsComeToAStandstill) {
  int standstills = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed)
    standstills += !World(seed, /*has_lead=*/false).Run().empty();
  EXPECT_GT(standstills, 0);
}

}  // namespace
}  // namespace psd::optim
