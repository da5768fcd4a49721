// Three trainers step an optimizer on three owners in synchronous rounds. The test runs the lead's
// rules of docs/decisions/0016-one-lead.md under random histories: messages overtake each other,
// calls time out on one owner and not on the others, and failed steps are tried again or dropped.
// Trainers change whether they clip by norm, lose their session with one owner and create the
// optimizer again, and die and are restarted.
//
// The same world without the lead, in which every owner collects its rounds by itself, shows that
// the histories are hard enough.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
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
#include "core/optim/owner/step_book.h"
#include "core/optim/steps/round_ledger.h"
#include "core/optim/steps/step_gate.h"
#include "core/optim/steps/step_request.h"
#include "gtest/gtest.h"

namespace psd::optim {
namespace {

constexpr size_t kOwners = 3, kTrainers = 3, kLead = 0;
constexpr int kEvents = 400, kMostDeliveries = 20'000, kLastRounds = 10;

// One owner and its reaction to the trainers' messages. Steps are applied as soon as possible.
class Owner {
 public:
  virtual ~Owner() = default;
  virtual void Submit(StepRequest request) = 0;
  virtual void Withdraw(uint64_t ticket) = 0;
  virtual void EndTurn(GlobalId session, GlobalId turn) = 0;
  virtual void EndSession(GlobalId session) = 0;

  // The trainer's turns with numbers below `before` were for its former sessions here.
  virtual void Join(GlobalId session, uint64_t before) { book_.Join(session, before); }
  const std::vector<GlobalId>& applied() const { return applied_; }

 protected:
  void Apply(StepRequest& request) {
    if (auto found = book_.Find(request); found.has_value()) {
      if (!found->ok()) return request.done(*found);
    } else {
      book_.End(request.member.session, request.step_id, request.ended_before);
      applied_.push_back(request.step_id);
    }
    request.done(StepResult{});
  }

  StepBook book_;

 private:
  std::vector<GlobalId> applied_;
};

// Collects the rounds that the lead has named. It is the lead itself if trainers ask it for turns.
class FollowingOwner : public Owner {
 public:
  FollowingOwner()
      : gate_(StepGate::Create(
            UpdateMode::Synchronous(kTrainers),
            [this](const StepRequest& request) { return Known(request); },
            [this](std::vector<StepRequest> steps) {
              for (StepRequest& step : steps) {
                if (step.measures) {
                  step.done(StepResult{});
                } else {
                  Apply(step);
                }
              }
            },
            {[this](GlobalId turn) { return book_.Expects(turn); },
             [this](GlobalId turn) { book_.EndTurn(turn); }})) {}

  void Join(GlobalId session, uint64_t before) override {
    const std::optional<GlobalId> former = book_.Join(session, before);
    if (former.has_value()) gate_->Leave(*former, 0);
  }
  void Submit(StepRequest request) override { gate_->Submit(std::move(request)); }
  void Withdraw(uint64_t ticket) override { gate_->Withdraw(ticket); }
  void EndTurn(GlobalId session, GlobalId turn) override {
    book_.EndTurn(session, turn);
    gate_->EndTurn(turn, /*applied=*/false);
  }
  void EndSession(GlobalId session) override {
    book_.EndSession(session, /*waits=*/true);
    gate_->Leave(session, 0);
  }

 private:
  std::optional<absl::StatusOr<StepResult>> Known(const StepRequest& request) {
    const std::optional<absl::Status> found = book_.FindWaiting(request);
    if (!found.has_value()) return std::nullopt;
    if (!found->ok()) return *found;
    return StepResult{};
  }

  std::unique_ptr<StepGate> gate_;
};

// Collects rounds by itself, each phase separately.
class LoneOwner : public Owner {
 public:
  void Submit(StepRequest request) override {
    EndGivenUp(request);
    if (auto found = book_.Find(request); found.has_value())
      return request.done(found->ok() ? absl::StatusOr<StepResult>(StepResult{}) : *found);
    const GlobalId step = request.step_id;
    if (const auto before = waiting_.find(step); before != waiting_.end()) {
      if (before->second.measures != request.measures) return request.done(absl::AbortedError(""));
      std::swap(before->second, request);
      return request.done(absl::AbortedError("asked for again"));
    }
    const RoundKind kind = request.measures ? RoundKind::kMeasured : RoundKind::kNamed;
    const absl::Status offered = ledger_.Offer(request.member.session, step, kind);
    if (!offered.ok()) return request.done(offered);
    waiting_.emplace(step, std::move(request));
    Advance();
  }
  void Withdraw(uint64_t ticket) override {
    for (const auto& [step, request] : waiting_)
      if (request.ticket == ticket) return Answer(step, absl::CancelledError("withdrawn"));
  }
  void EndTurn(GlobalId, GlobalId) override {}
  void EndSession(GlobalId session) override {
    book_.EndSession(session, /*waits=*/true);
    const std::optional<GlobalId> step = ledger_.Leave(session);
    if (step.has_value()) Answer(*step, absl::AbortedError("left"));
    Advance();
  }

 private:
  void Answer(GlobalId step, const absl::Status& status) {
    ledger_.Withdraw(step);
    StepRequest request = std::move(waiting_.at(step));
    waiting_.erase(step);
    request.done(status);
  }
  void EndGivenUp(const StepRequest& request) {
    std::vector<GlobalId> given_up;
    for (const auto& [step, other] : waiting_) {
      if (step.incarnation == request.step_id.incarnation && step.counter < request.ended_before)
        given_up.push_back(step);
    }
    for (const GlobalId& step : given_up) Answer(step, absl::CancelledError("given up"));
  }
  void Advance() {
    if (!ledger_.complete()) return;
    for (const GlobalId& step : ledger_.Take()) {
      StepRequest request = std::move(waiting_.at(step));
      waiting_.erase(step);
      if (request.measures) {
        request.done(StepResult{});
      } else {
        Apply(request);
      }
    }
  }

  RoundLedger ledger_{kTrainers};
  std::map<GlobalId, StepRequest> waiting_;
};

class World {
 public:
  World(uint64_t seed, bool lead_names_rounds) : random_(seed), has_lead_(lead_names_rounds) {
    for (std::unique_ptr<Owner>& owner : owners_) {
      if (has_lead_) {
        owner = std::make_unique<FollowingOwner>();
      } else {
        owner = std::make_unique<LoneOwner>();
      }
    }
    for (Trainer& trainer : trainers_) Start(trainer);
  }

  // Returns a description of the first fault, or an empty text.
  std::string Run() {
    for (int i = 0; i < kEvents; ++i) RandomEvent();
    // From here on nobody fails, and all trainers clip alike. Trainers that wait with other options
    // are waiting for trainers that are refused, until their calls time out. When all trainers
    // step, they come to an end together.
    for (Trainer& trainer : trainers_)
      while (trainer.waits && trainer.clips != clips_) TimeOut(trainer);
    for (int i = 0; i < kLastRounds; ++i) {
      for (Trainer& trainer : trainers_)
        if (!trainer.waits) NextStep(trainer);
      for (int deliveries = 0; !messages_.empty(); ++deliveries) {
        if (deliveries == kMostDeliveries) return "messages without end";
        Deliver();
      }
      const bool all_idle = std::none_of(std::begin(trainers_), std::end(trainers_),
                                         [](const Trainer& trainer) { return trainer.waits; });
      if (all_idle) return CheckApplied();
    }
    return "a standstill: the trainers are in different rounds, or wait for ever";
  }

 private:
  enum class Phase { kTurn, kMeasure, kStep };
  struct Trainer {
    Incarnation incarnation = 0;
    uint64_t epochs[kOwners] = {};  // of its sessions with the owners
    uint64_t used[kOwners] = {};    // the sessions in which its present step began
    uint64_t numbers = 0;           // the number of steps and turns so far
    uint64_t step = 0, turn = 0;    // the latest ones
    std::set<uint64_t> open;        // steps that may be asked for again
    bool waits = false;
    bool clips = false;
    Phase phase = Phase::kTurn;
    RoundPlace place;
    uint64_t attempt = 0;                // answers to earlier attempts are ignored
    std::map<size_t, uint64_t> pending;  // tickets of calls that are not answered, by owner
    bool failed = false;                 // whether a call of this phase has failed
    // The owners that a step is sent to without a lead, and those that have applied it.
    std::map<uint64_t, std::set<size_t>> applied;  // by step
  };
  using Message = std::function<void()>;

  size_t Draw(size_t below) { return random_() % below; }
  void Send(Message message) { messages_.push_back(std::move(message)); }
  // Any message that is on its way: they overtake each other.
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
    trainer.incarnation = ++incarnations_;
    for (uint64_t& epoch : trainer.epochs) epoch = ++epochs_;
    Create(trainer);
  }

  // Creates the optimizer on all owners, or joins it.
  void Create(Trainer& trainer) {
    const uint64_t before = ++trainer.numbers;
    for (size_t i = 0; i < kOwners; ++i)
      owners_[i]->Join({trainer.incarnation, trainer.epochs[i]}, before);
  }

  void RandomEvent() {
    Trainer& trainer = trainers_[Draw(kTrainers)];
    switch (Draw(40)) {
      case 0:
        return Die(trainer);
      case 1:
      case 2:
        return TimeOut(trainer);
      case 3:
        clips_ = !clips_;
        return;
      case 4:
      case 5:
      case 6:
      case 7:
        if (!trainer.waits) NextStep(trainer);
        return;
      case 8:
        if (!trainer.waits && !trainer.open.empty()) Retry(trainer);
        return;
      case 9:
        return LoseSession(trainer, Draw(kOwners));
      default:
        if (!messages_.empty()) Deliver();
    }
  }

  void SendEndOfSession(const Trainer& trainer, size_t owner) {
    const GlobalId session{trainer.incarnation, trainer.epochs[owner]};
    Send([this, owner, session] { owners_[owner]->EndSession(session); });
  }
  void Die(Trainer& trainer) {
    for (size_t i = 0; i < kOwners; ++i) SendEndOfSession(trainer, i);
    Start(trainer);
  }

  // The trainer creates the optimizer again at once, in a new session, and gives up the step of the
  // former session. The owner may be told later that the old session has ended.
  void LoseSession(Trainer& trainer, size_t owner) {
    SendEndOfSession(trainer, owner);
    trainer.epochs[owner] = ++epochs_;
    Create(trainer);
    trainer.open.clear();
    if (!trainer.waits) return;
    trainer.open.insert(trainer.step);
    if (trainer.pending.count(owner) > 0) Hear(trainer, owner, /*ok=*/false);
  }

  // One call to one owner times out.
  void TimeOut(Trainer& trainer) {
    if (trainer.pending.empty()) return;
    const auto call = std::next(trainer.pending.begin(), Draw(trainer.pending.size()));
    Send([this, i = call->first, ticket = call->second] { owners_[i]->Withdraw(ticket); });
    Hear(trainer, call->first, /*ok=*/false);
  }

  void NextStep(Trainer& trainer) {
    trainer.step = ++trainer.numbers;
    trainer.open.insert(trainer.step);
    Try(trainer);
  }
  void Retry(Trainer& trainer) {
    trainer.step = *std::next(trainer.open.begin(), Draw(trainer.open.size()));
    Try(trainer);
  }

  void Try(Trainer& trainer) {
    trainer.waits = true;
    trainer.clips = clips_;
    trainer.turn = ++trainer.numbers;
    std::copy(std::begin(trainer.epochs), std::end(trainer.epochs), std::begin(trainer.used));
    Begin(trainer, has_lead_ ? Phase::kTurn : trainer.clips ? Phase::kMeasure : Phase::kStep);
  }

  void Begin(Trainer& trainer, Phase phase) {
    ++trainer.attempt;
    trainer.phase = phase;
    trainer.failed = false;
    trainer.pending.clear();
    std::vector<std::pair<size_t, StepRequest>> calls;
    for (size_t i = 0; i < kOwners; ++i) {
      if (phase == Phase::kTurn && i != kLead) continue;
      if (!has_lead_ && trainer.applied[trainer.step].count(i) > 0) continue;
      if (HasLost(trainer, i)) {
        trainer.failed = true;
        continue;
      }
      trainer.pending[i] = ++tickets_;
      calls.emplace_back(i, Request(trainer, i));
    }
    for (auto& [i, request] : calls) {
      auto shared = std::make_shared<StepRequest>(std::move(request));  // a Message can be copied
      Send([this, i = i, shared] { owners_[i]->Submit(std::move(*shared)); });
    }
    if (trainer.pending.empty()) Fail(trainer);
  }

  // Whether the session in which the trainer's step began on this owner has ended.
  static bool HasLost(const Trainer& trainer, size_t owner) {
    return trainer.used[owner] != trainer.epochs[owner];
  }

  StepRequest Request(Trainer& trainer, size_t owner) {
    StepRequest request;
    request.step_id = {trainer.incarnation, trainer.step};
    request.ended_before = *trainer.open.begin();
    request.ticket = trainer.pending[owner];
    request.member = {{trainer.incarnation, trainer.used[owner]}, "trainer"};
    request.measures = trainer.phase == Phase::kMeasure;
    if (trainer.phase == Phase::kTurn) {
      request.step_id.counter = request.ended_before = trainer.turn;
      request.takes_turn = true;
      request.measures = trainer.clips;
    } else if (has_lead_) {
      request.round = trainer.place;
    }
    // The answer also travels as a message, and an answer to an attempt that is over is ignored.
    request.done = [this, &trainer, owner,
                    attempt = trainer.attempt](const absl::StatusOr<StepResult>& result) {
      const RoundWord word = result.ok() ? result->round : RoundWord{};
      Send([this, &trainer, owner, attempt, word, ok = result.ok()] {
        if (trainer.attempt != attempt || trainer.pending.count(owner) == 0) return;
        if (trainer.phase == Phase::kTurn)
          trainer.place = {{trainer.incarnation, trainer.turn}, trainer.turn, word};
        Hear(trainer, owner, ok);
      });
    };
    return request;
  }

  void Hear(Trainer& trainer, size_t owner, bool ok) {
    trainer.pending.erase(owner);
    trainer.failed |= !ok;
    if (ok && trainer.phase == Phase::kStep) trainer.applied[trainer.step].insert(owner);
    if (!trainer.pending.empty()) return;
    if (trainer.failed) return Fail(trainer);
    if (trainer.phase == Phase::kTurn && trainer.clips) return Begin(trainer, Phase::kMeasure);
    if (trainer.phase != Phase::kStep) return Begin(trainer, Phase::kStep);
    trainer.waits = false;
    ++trainer.attempt;
    trainer.open.erase(trainer.step);
    ended_.insert({trainer.incarnation, trainer.step});
  }

  // The step is tried again at once or later, or its outcome is dropped.
  void Fail(Trainer& trainer) {
    trainer.waits = false;
    ++trainer.attempt;
    const GlobalId turn{trainer.incarnation, trainer.turn};
    bool lost = false;
    for (size_t i = 0; i < kOwners; ++i) {
      lost |= HasLost(trainer, i);
      if (!has_lead_ || HasLost(trainer, i)) continue;
      const GlobalId session{trainer.incarnation, trainer.used[i]};
      Send([this, i, session, turn] { owners_[i]->EndTurn(session, turn); });
    }
    switch (lost ? 1 : Draw(3)) {
      case 0:
        return Try(trainer);
      case 1:
        trainer.open.erase(trainer.step);
        return;
      default:
        return;
    }
  }

  std::string CheckApplied() const {
    for (const std::unique_ptr<Owner>& owner : owners_) {
      std::set<GlobalId> once(owner->applied().begin(), owner->applied().end());
      if (once.size() != owner->applied().size()) return "a step was applied twice";
      for (const GlobalId& step : ended_)
        if (once.count(step) == 0) return absl::StrCat("lost: ", step.ToString());
    }
    return "";
  }

  std::mt19937_64 random_;
  const bool has_lead_;
  uint64_t incarnations_ = 0, epochs_ = 0, tickets_ = 0;
  bool clips_ = false;  // the present option of the trainers' program
  std::unique_ptr<Owner> owners_[kOwners];
  Trainer trainers_[kTrainers];
  std::set<GlobalId> ended_;  // as the trainers were told
  std::vector<Message> messages_;
};

TEST(RoundsSim, MembersStayInOneRoundAndEveryStepIsAppliedOnce) {
  for (uint64_t seed = 1; seed <= 5000; ++seed)
    ASSERT_EQ(World(seed, /*lead_names_rounds=*/true).Run(), "") << "seed " << seed;
}

TEST(RoundsSim, OwnersThatCollectRoundsByThemselvesGetOutOfStep) {
  int failures = 0;
  for (uint64_t seed = 1; seed <= 200; ++seed)
    failures += !World(seed, /*lead_names_rounds=*/false).Run().empty();
  EXPECT_GT(failures, 0);
}

}  // namespace
}  // namespace psd::optim
