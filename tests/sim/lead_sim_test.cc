// Three trainers step an optimizer on three owners, one step at a time within a bound. The test
// runs the lead's rules of docs/decisions/0016-one-lead.md under random histories: messages
// overtake each other, calls are given up and repeated, and trainers die and are restarted.
//
// The same world without one of the rules shows that the histories are hard enough. Without a lead,
// when every owner gives its own turns, it comes to a standstill. The same happens when turns end
// with their steps, which their trainers keep open for as long as they may try again.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
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

struct Rules {
  bool has_lead = true;
  bool turns_have_numbers = true;  // numbers of their own; otherwise those of their steps
};

constexpr size_t kOwners = 3, kTrainers = 3, kLead = 0;
constexpr int kEvents = 400, kMostDeliveries = 10'000;

// One owner and its reaction to messages. It applies a step at once when its turn has come.
class Owner {
 public:
  explicit Owner(const Rules& rules)
      : rules_(rules),
        gate_(StepGate::Create(
            UpdateMode::BoundedStaleness(0, UpdateMode::WhenStale::kWait),
            [this](const StepRequest& request) { return Known(request); },
            [this](std::vector<StepRequest> steps) {
              for (StepRequest& step : steps) Apply(step);
            },
            {})) {}

  void Step(StepRequest request) {
    if (request.in_turn) return Apply(request);
    gate_->Submit(std::move(request));
  }
  void TakeTurn(StepRequest request) {
    request.takes_turn = true;
    gate_->Submit(std::move(request));
  }
  void EndTurn(GlobalId session, GlobalId turn) {
    if (ended_turns_.Find(session, turn) == StepRecords::Answer::kNew)
      ended_turns_.End(session, turn);
    gate_->EndTurn(turn, /*applied=*/true);
  }
  void EndSession(GlobalId session) {
    records_.EndSession(session);
    ended_turns_.EndSession(session);
    gate_->Leave(session, 0);
  }
  const std::vector<GlobalId>& applied() const { return applied_; }

 private:
  std::optional<absl::StatusOr<StepResult>> Known(const StepRequest& request) {
    const bool is_turn = request.takes_turn && rules_.turns_have_numbers;
    const auto answer =
        (is_turn ? ended_turns_ : records_).Find(request.member.session, request.step_id);
    if (answer == StepRecords::Answer::kNew) return std::nullopt;
    if (is_turn || answer != StepRecords::Answer::kEnded) return absl::AbortedError("too late");
    if (request.takes_turn) return std::nullopt;
    return StepResult{};
  }
  void Apply(StepRequest& request) {
    if (auto known = Known(request); known.has_value()) return request.done(*std::move(known));
    records_.Acknowledge(request.step_id.incarnation, request.ended_before);
    records_.End(request.member.session, request.step_id);
    applied_.push_back(request.step_id);
    request.done(StepResult{});
  }

  const Rules rules_;
  StepRecords records_, ended_turns_;
  std::vector<GlobalId> applied_;
  std::unique_ptr<StepGate> gate_;
};

class World {
 public:
  World(uint64_t seed, const Rules& rules) : random_(seed), rules_(rules) {
    for (size_t i = 0; i < kTrainers; ++i) Start(trainers_[i]);
  }

  // Returns a description of the fault, or an empty text.
  std::string Run() {
    for (int i = 0; i < kEvents; ++i) RandomEvent();
    // From here on nobody fails, and trainers that compute no step leave. All others must come to
    // an end.
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
    uint64_t numbers = 0;         // the number of steps and turns so far
    uint64_t step = 0, turn = 0;  // the latest ones
    std::set<uint64_t> open;      // steps that may be asked for again
    bool waits = false;
    uint64_t attempt = 0;  // answers to earlier attempts are ignored
    std::set<size_t> pending;
  };
  using Message = std::function<void()>;

  size_t Draw(size_t below) { return random_() % below; }
  void Send(Message message) { messages_.push_back(std::move(message)); }
  // Delivers any message that is under way: messages overtake each other.
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
      case 5:
        if (!trainer.waits && !trainer.open.empty()) Retry(trainer);
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

  // The call's time is over. The same step is repeated, or the next one is asked for, and the
  // outcome of the failed step is dropped or kept.
  void GiveUp(Trainer& trainer) {
    if (!trainer.waits) return;
    EndTurn(trainer);
    if (Draw(2) == 0) return Ask(trainer);
    if (Draw(2) == 0) trainer.open.erase(trainer.step);
    NextStep(trainer);
  }

  void EndTurn(const Trainer& trainer) {
    if (!rules_.has_lead) return;
    Send([this, session = trainer.session, turn = TurnOf(trainer)] {
      owners_[kLead].EndTurn(session, turn);
    });
  }

  void NextStep(Trainer& trainer) {
    trainer.step = ++trainer.numbers;
    trainer.open.insert(trainer.step);
    Ask(trainer);
  }
  void Retry(Trainer& trainer) {
    trainer.step = *std::next(trainer.open.begin(), Draw(trainer.open.size()));
    Ask(trainer);
  }

  GlobalId StepOf(const Trainer& trainer) const {
    return {trainer.session.incarnation, trainer.step};
  }
  GlobalId TurnOf(const Trainer& trainer) const {
    return {trainer.session.incarnation, trainer.turn};
  }

  void Ask(Trainer& trainer) {
    trainer.waits = true;
    ++trainer.attempt;
    trainer.pending.clear();
    if (!rules_.has_lead) return AskAll(trainer, /*in_turn=*/false);
    trainer.turn = rules_.turns_have_numbers ? ++trainer.numbers : trainer.step;
    StepRequest turn = Request(trainer);
    turn.step_id = TurnOf(trainer);
    if (rules_.turns_have_numbers) turn.ended_before = trainer.turn;
    turn.done = Answer(trainer, [this, &trainer](bool ok) {
      if (!ok) return Ask(trainer);
      AskAll(trainer, /*in_turn=*/true);
    });
    auto shared = std::make_shared<StepRequest>(std::move(turn));  // a Message can be copied
    Send([this, shared] { owners_[kLead].TakeTurn(std::move(*shared)); });
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
    trainer.open.erase(trainer.step);
    ended_.insert(StepOf(trainer));
    EndTurn(trainer);
  }

  StepRequest Request(const Trainer& trainer) {
    StepRequest request;
    request.step_id = StepOf(trainer);
    request.ended_before = *trainer.open.begin();
    request.ticket = ++tickets_;
    request.member = {trainer.session, "trainer"};
    return request;
  }

  void SendStep(size_t owner, StepRequest request) {
    auto shared = std::make_shared<StepRequest>(std::move(request));
    Send([this, owner, shared] { owners_[owner].Step(std::move(*shared)); });
  }

  // The answer also travels as a message, and an answer to an attempt that was given up is ignored.
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
  const Rules rules_;
  uint64_t incarnations_ = 0, tickets_ = 0;
  Owner owners_[kOwners] = {Owner(rules_), Owner(rules_), Owner(rules_)};
  Trainer trainers_[kTrainers];
  std::set<GlobalId> ended_;  // as the trainers were told
  std::vector<Message> messages_;
};

TEST(LeadSim, NobodyWaitsForEverAndEveryStepIsAppliedOnce) {
  for (uint64_t seed = 1; seed <= 5000; ++seed)
    ASSERT_EQ(World(seed, Rules{}).Run(), "") << "seed " << seed;
}

// Returns in how many histories something goes wrong.
int Failures(const Rules& rules) {
  int failures = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed) failures += !World(seed, rules).Run().empty();
  return failures;
}

TEST(LeadSim, OwnersThatEachGiveTheirOwnTurnsComeToAStandstill) {
  Rules rules;
  rules.has_lead = false;
  EXPECT_GT(Failures(rules), 0);
}

TEST(LeadSim, TurnsThatEndWithTheirStepsAreWaitedForByTheirOwnTrainers) {
  Rules rules;
  rules.turns_have_numbers = false;
  EXPECT_GT(Failures(rules), 0);
}

}  // namespace
}  // namespace psd::optim
