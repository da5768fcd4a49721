// Groups of ledgers with real tensors, whose messages come in any order: every seed is another
// order, and may lose a rank, stop one, let one make another call, or let one call after all
// others.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/buffer.h"
#include "core/base/status.h"
#include "core/services/collectives/call_data.h"
#include "core/services/collectives/call_plan.h"
#include "core/services/collectives/collective_call.h"
#include "core/services/collectives/group_ledger.h"
#include "core/tensor/tensor.h"
#include "gtest/gtest.h"

namespace psd::services {
namespace {

// So small that a few hundred elements are several pieces, that all-reduces go both ways, and that
// both with and without notices which bring data.
constexpr PlanLimits kLimits{/*small_bytes=*/64,         /*piece_bytes=*/128,
                             /*most_direct_bytes=*/1000, /*most_extra_bytes=*/512,
                             /*notice_bytes=*/512,       /*most_notice_bytes=*/1024,
                             /*most_shared_bytes=*/2048};
constexpr absl::Duration kTimeout = absl::Seconds(1);

enum class Fault {
  kNone,
  kDies,     // a rank handles nothing any more, and the others notice
  kFreezes,  // a rank handles nothing any more, and nobody is told
  kStops,    // a rank makes no further calls
  kDiffers,  // a rank makes another call than the others
  kLeaves,   // a rank leaves while the others go on
};

struct RunningCall {
  RunningCall(int ranks, int rank) : data(ranks, rank) {}
  CallData data;
  bool entered = false;
  std::optional<TensorForm> given;
  std::vector<bool> open;
  std::vector<size_t> reduced;  // pieces that wait for lines to open
  std::optional<std::vector<Tensor>> results;
};

struct Rank {
  std::unique_ptr<GroupLedger> ledger;
  std::map<uint64_t, std::unique_ptr<RunningCall>> calls;
  size_t made = 0;  // calls
  size_t complete = 0;
  bool dead = false;  // or frozen
  bool left = false, told_end = false;
};

class Simulation {
 public:
  Simulation(uint32_t seed, Fault fault) : random_(seed), fault_(fault) {
    ranks_.resize(2 + random_() % 4);
    std::vector<std::string> names;
    for (size_t i = 0; i < ranks_.size(); ++i) names.push_back(absl::StrCat("t", i));
    for (int i = 0; i < size(); ++i)
      ranks_[i].ledger = std::make_unique<GroupLedger>("g", names, i, kLimits);
    const size_t calls = 1 + random_() % 30;
    for (size_t i = 0; i < calls; ++i) calls_.push_back(RandomCall());
    victim_ = static_cast<int>(random_() % ranks_.size());
    fault_at_ = random_() % calls;
    if (random_() % 2 == 0) last_ = static_cast<int>(random_() % ranks_.size());
    waits_ = random_() % 2 == 0;
  }

  void Run() {
    int steps = 0;
    while (Step()) ASSERT_LT(++steps, 200'000);
    Check();
  }

 private:
  using Event = std::function<void()>;

  int size() const { return static_cast<int>(ranks_.size()); }

  CollectiveCall RandomCall() {
    CollectiveCall call;
    call.operation = static_cast<Operation>(1 + random_() % 7);
    if (Reduces(call.operation)) call.reduction = static_cast<Reduction>(1 + random_() % 4);
    if (HasRoot(call.operation)) call.root = static_cast<int>(random_() % ranks_.size());
    if (call.operation != Operation::kBarrier) {
      // With 11, 5 ranks have 4 cache lines, so that one of them gets an empty part.
      const int64_t sizes[] = {0, 1, 11, 16, 17, 100, 300};
      call.form = TensorForm{DType::kF32, {size() * sizes[random_() % 7]}};
    }
    call.shares_memory = calls_.size() % 2 == 1;
    return call;
  }

  static Tensor Input(int rank, uint64_t number, const TensorForm& form, int part = 0) {
    std::vector<float> numbers(static_cast<size_t>(form.shape.NumElements()));
    for (size_t i = 0; i < numbers.size(); ++i)
      numbers[i] = 1e-3f + static_cast<float>((i * 37 + rank * 101 + number * 13 + part) % 1009) *
                               (i % 3 == 0 ? 1e6f : 0.1f);
    return Tensor::Of<float>(form.shape, std::move(numbers));
  }

  // The calls that a rank makes: those of all, with another one where it differs.
  CollectiveCall CallOf(int rank, uint64_t number) {
    CollectiveCall call = calls_[number];
    if (fault_ == Fault::kDiffers && rank == victim_ && number == fault_at_) call.label = "other";
    return call;
  }

  // Does one random thing. Returns false when there is nothing left to do.
  bool Step() {
    std::vector<int> callers;
    for (int rank = 0; rank < size(); ++rank) {
      const Rank& r = ranks_[rank];
      const bool stopped = (rank == victim_ && r.made == fault_at_ && fault_ == Fault::kStops) ||
                           (waits_ && r.complete < r.made);
      if (!r.dead && !r.left && !stopped && r.made < calls_.size() && r.ledger->failure().ok())
        callers.push_back(rank);
    }
    if (callers.size() > 1)
      callers.erase(std::remove(callers.begin(), callers.end(), last_), callers.end());
    if (!callers.empty() && (events_.empty() || random_() % 8 == 0)) {
      Make(callers[random_() % callers.size()]);
      return true;
    }
    if (events_.empty()) return PassTime();
    const size_t at = random_() % events_.size();
    Event event = std::move(events_[at]);
    events_[at] = std::move(events_.back());
    events_.pop_back();
    event();
    return true;
  }

  // Returns whether a deadline has passed.
  bool PassTime() {
    absl::Time next = absl::InfiniteFuture();
    for (const Rank& rank : ranks_) {
      if (!rank.dead && rank.ledger->failure().ok())
        next = std::min(next, rank.ledger->NextDeadline(now_));
    }
    if (next == absl::InfiniteFuture()) return false;
    now_ = std::max(now_, next);
    for (int rank = 0; rank < size(); ++rank) {
      if (ranks_[rank].dead) continue;
      GroupEffects effects;
      ranks_[rank].ledger->Expire(now_, effects);
      Perform(rank, effects);
    }
    return true;
  }

  RunningCall& Running(int rank, uint64_t number) {
    auto& call = ranks_[rank].calls[number];
    if (call == nullptr) {
      call = std::make_unique<RunningCall>(size(), rank);
      call->open.resize(ranks_.size());
    }
    return *call;
  }

  void Settle(RunningCall& running) {
    if (!running.entered || running.data.plan() != nullptr) return;
    CollectiveCall call = running.data.call();
    if (!call.form.has_value()) call.form = running.given;
    if (!call.form.has_value() && call.operation != Operation::kBarrier) return;
    running.data.SetPlan(call.form.has_value() ? &*call.form : nullptr,
                         CallPlan(call, size(), kLimits));
  }

  void Make(int rank) {
    Rank& r = ranks_[rank];
    const uint64_t number = r.made++;
    now_ += absl::Milliseconds(1);  // a later call has a later deadline
    const bool at_fault = rank == victim_ && number == fault_at_;
    if (at_fault && fault_ == Fault::kDies) return Die(rank);
    if (at_fault && fault_ == Fault::kFreezes) {
      r.dead = true;
      return;
    }
    if (at_fault && fault_ == Fault::kLeaves) return LeaveGroup(rank);
    CollectiveCall call = CallOf(rank, number);
    const bool given =
        call.operation == Operation::kBroadcast || call.operation == Operation::kScatter;
    std::vector<Tensor> inputs;
    if (call.operation == Operation::kScatter && call.root == rank) {
      for (int part = 0; part < size(); ++part)
        inputs.push_back(Input(rank, number, *call.form, part));
    } else if (call.form.has_value() && (!given || call.root == rank)) {
      inputs.push_back(Input(rank, number, *call.form));
    }
    if (given && call.root != rank && random_() % 2 == 0) call.form.reset();
    auto own = CallData::Prepare(call, std::move(inputs), rank, size(), nullptr);
    ASSERT_TRUE(own.ok()) << own.status();
    GroupEffects effects;
    auto entered = r.ledger->Enter(call, now_, kTimeout, effects);
    ASSERT_TRUE(entered.ok()) << entered.status();
    ASSERT_EQ(*entered, number);
    RunningCall& running = Running(rank, number);
    running.entered = true;
    running.data.Bring(*std::move(own));
    Settle(running);
    Perform(rank, effects);
  }

  void Die(int rank) {
    ranks_[rank].dead = true;
    for (int other = 0; other < size(); ++other) {
      if (other == rank) continue;
      Post(other, [this, other, rank](GroupEffects& effects) {
        ranks_[other].ledger->Lost(rank, absl::UnavailableError("it died"), effects);
      });
    }
  }

  // The other ranks receive the rank's earlier messages before they see that it has left.
  void LeaveGroup(int rank) {
    ranks_[rank].left = true;
    while (!events_.empty()) {
      const Event event = std::move(events_.back());
      events_.pop_back();
      event();
    }
    for (int other = 0; other < size(); ++other) {
      if (other == rank) continue;
      Post(other, [this, other, rank](GroupEffects& effects) {
        ranks_[other].ledger->Left(rank, effects);
      });
    }
    GroupEffects effects;
    ranks_[rank].ledger->Left(rank, effects);
    ranks_[rank].told_end = true;  // it has told the others that it left
    Perform(rank, effects);
  }

  // Something that happens at `rank` at some later time, unless it has died.
  void Post(int rank, std::function<void(GroupEffects&)> happens) {
    events_.push_back([this, rank, happens = std::move(happens)] {
      if (ranks_[rank].dead) return;
      GroupEffects effects;
      happens(effects);
      Perform(rank, effects);
    });
  }

  void Perform(int rank, const GroupEffects& effects) {
    for (const GroupEffect& effect : effects) {
      switch (effect.kind) {
        case GroupEffect::kTell:
          Tell(rank, effect.number, effect.index);
          break;
        case GroupEffect::kOpen:
          Open(rank, effect.number, effect.rank);
          break;
        case GroupEffect::kReduce:
          Post(rank, [this, rank, effect](GroupEffects& later) {
            if (!ranks_[rank].ledger->failure().ok()) return;
            Running(rank, effect.number).data.Reduce(effect.index);
            ranks_[rank].ledger->Reduced(effect.number, effect.index, later);
          });
          break;
        case GroupEffect::kSendReduced: {
          RunningCall& running = Running(rank, effect.number);
          running.reduced.push_back(effect.index);
          for (int to = 0; to < size(); ++to) {
            if (to != rank && running.open[to]) SendPiece(rank, effect.number, to, 1, effect.index);
          }
          break;
        }
        case GroupEffect::kComplete: {
          RunningCall& running = Running(rank, effect.number);
          int wrong = -1;
          auto results = running.data.Results(wrong);
          ASSERT_TRUE(results.ok()) << results.status();
          EXPECT_FALSE(running.results.has_value()) << "a call completes once";
          running.results = *std::move(results);
          ++ranks_[rank].complete;
          break;
        }
        case GroupEffect::kFail:
          if (ranks_[rank].told_end) break;
          for (int other = 0; other < size(); ++other) {
            if (other == rank) continue;
            Post(other, [this, other, failure = ranks_[rank].ledger->failure()](
                            GroupEffects& later) { ranks_[other].ledger->Fail(failure, later); });
          }
          break;
      }
    }
  }

  void Tell(int rank, uint64_t number, uint64_t completed) {
    RunningCall& running = Running(rank, number);
    const CallPlan* plan = running.data.plan();
    for (int to = 0; to < size(); ++to) {
      if (to == rank) continue;
      std::optional<Buffer> data;
      if (plan != nullptr && plan->tells_bytes() && plan->Pieces(0, rank, to) > 0)
        data = running.data.Outgoing(0, to, 0);
      Post(to,
           [this, rank, to, number, completed, call = running.data.call(), data](
               GroupEffects& effects) { Hear(rank, to, number, completed, call, data, effects); });
    }
  }

  void Hear(int from, int rank, uint64_t number, uint64_t completed, const CollectiveCall& call,
            const std::optional<Buffer>& data, GroupEffects& effects) {
    const absl::StatusOr<bool> keep =
        ranks_[rank].ledger->Heard(from, number, completed, call, effects);
    ASSERT_TRUE(keep.ok()) << keep.status();
    if (*keep) {
      RunningCall& running = Running(rank, number);
      if (data.has_value()) running.data.Keep(from, 0, *data);
      if (call.form.has_value()) running.given = call.form;
      Settle(running);
    }
    Post(from, [this, from, rank, number](GroupEffects& told) {
      ranks_[from].ledger->Told(rank, number, told);
    });
  }

  void Open(int rank, uint64_t number, int to) {
    RunningCall& running = Running(rank, number);
    EXPECT_FALSE(running.open[to]);
    running.open[to] = true;
    const CallPlan& plan = *running.data.plan();
    const size_t pieces = plan.tells_bytes() ? 0 : plan.Pieces(0, rank, to);
    for (size_t index = 0; index < pieces; ++index) SendPiece(rank, number, to, 0, index);
    for (const size_t index : running.reduced) SendPiece(rank, number, to, 1, index);
  }

  void SendPiece(int rank, uint64_t number, int to, int phase, size_t index) {
    const Buffer piece = Running(rank, number).data.Outgoing(phase, to, index);
    Post(to, [=](GroupEffects& effects) {
      GroupLedger& ledger = *ranks_[to].ledger;
      if (!ledger.failure().ok()) return;
      const absl::Status arrived = ledger.Arrived(rank, number, phase, index, effects);
      ASSERT_TRUE(arrived.ok()) << arrived;
      if (phase == 0) return Running(to, number).data.Keep(rank, index, piece);
      Post(to, [=](GroupEffects& stored) {
        if (!ranks_[to].ledger->failure().ok()) return;
        Running(to, number).data.Store(rank, index, piece);
        ranks_[to].ledger->Stored(number, stored);
      });
    });
  }

  // ---- what must hold at the end

  std::vector<Tensor> Expected(int rank, uint64_t number) const {
    const CollectiveCall& call = calls_[number];
    std::vector<Tensor> expected;
    switch (call.operation) {
      case Operation::kBarrier:
        break;
      case Operation::kAllReduce:
        expected.push_back(Reduced(number, *call.reduction));
        break;
      case Operation::kReduceScatter: {
        const Tensor all = Reduced(number, *call.reduction);
        const int64_t rows = all.shape()[0] / size();
        expected.push_back(Tensor::Of<float>(
            {rows}, {all.data<float>() + rank * rows, static_cast<size_t>(rows)}));
        break;
      }
      case Operation::kGather:
        if (rank != call.root) break;
        [[fallthrough]];
      case Operation::kAllGather:
        for (int from = 0; from < size(); ++from)
          expected.push_back(Input(from, number, *call.form));
        break;
      case Operation::kBroadcast:
        expected.push_back(Input(call.root, number, *call.form));
        break;
      case Operation::kScatter:
        expected.push_back(Input(call.root, number, *call.form, rank));
        break;
    }
    return expected;
  }

  Tensor Reduced(uint64_t number, Reduction reduction) const {
    const TensorForm& form = *calls_[number].form;
    const Tensor first = Input(0, number, form);
    std::vector<float> total(first.data<float>(), first.data<float>() + first.NumElements());
    for (int rank = 1; rank < size(); ++rank) {
      const Tensor next = Input(rank, number, form);
      for (size_t i = 0; i < total.size(); ++i) {
        const float x = next.data<float>()[i];
        if (reduction == Reduction::kMin) {
          total[i] = std::min(total[i], x);
        } else if (reduction == Reduction::kMax) {
          total[i] = std::max(total[i], x);
        } else {
          total[i] += x;
        }
      }
    }
    if (reduction == Reduction::kMean)
      for (float& x : total) x /= static_cast<float>(size());
    return Tensor::Of<float>(form.shape, std::move(total));
  }

  void Check() {
    // The calls before the fault are complete at all ranks, unless it came while they were under
    // way; what is complete is right.
    for (int rank = 0; rank < size(); ++rank) {
      if (ranks_[rank].dead) continue;
      const absl::Status& failure = ranks_[rank].ledger->failure();
      EXPECT_EQ(failure.ok(), fault_ == Fault::kNone) << "rank " << rank << ": " << failure;
      size_t complete = 0;
      for (const auto& [number, running] : ranks_[rank].calls) {
        if (!running->results.has_value()) continue;
        ++complete;
        // A rank that differs in one call makes the later ones, too.
        const bool made_by_all =
            fault_ == Fault::kDiffers ? number != fault_at_ : number < fault_at_;
        EXPECT_TRUE(fault_ == Fault::kNone || made_by_all)
            << "a call that not all ranks made is complete";
        const std::vector<Tensor> expected = Expected(rank, number);
        ASSERT_EQ(running->results->size(), expected.size());
        for (size_t i = 0; i < expected.size(); ++i) {
          const Tensor& got = (*running->results)[i];
          EXPECT_EQ(got.shape(), expected[i].shape());
          EXPECT_EQ(got.AsBuffer().view(), expected[i].AsBuffer().view())
              << calls_[number].ToString() << " on rank " << rank;
        }
      }
      if (fault_ == Fault::kNone) {
        EXPECT_EQ(complete, calls_.size());
      }
      CheckFailure(rank, failure);
    }
  }

  void CheckFailure(int rank, const absl::Status& failure) const {
    const std::string text(failure.message());
    const bool names =
        text.find(absl::StrCat("rank ", victim_, " (t", victim_, ")")) != std::string::npos;
    if (fault_ != Fault::kNone) {
      EXPECT_TRUE(names) << text;
    }
    if (fault_ == Fault::kDies || fault_ == Fault::kFreezes || fault_ == Fault::kStops) {
      EXPECT_EQ(GetDetail(failure)->worker, absl::StrCat("t", victim_)) << text;
    }
    if (fault_ == Fault::kFreezes || fault_ == Fault::kStops) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(failure)) << rank;
    }
    if (fault_ == Fault::kDiffers) {
      EXPECT_TRUE(absl::IsFailedPrecondition(failure)) << rank;
    }
  }

  std::mt19937 random_;
  const Fault fault_;
  absl::Time now_ = absl::UnixEpoch();
  std::vector<Rank> ranks_;
  std::vector<CollectiveCall> calls_;
  int victim_ = 0;
  uint64_t fault_at_ = 0;
  int last_ = -1;       // a rank that makes calls only when no other one can; -1 if there is none
  bool waits_ = false;  // whether a rank makes a call only when its earlier ones are complete
  std::vector<Event> events_;
};

class GroupSimulationTest : public ::testing::TestWithParam<Fault> {};

TEST_P(GroupSimulationTest, DDP_30_DDP_31_ZERO_17_AnyOrderOfMessages) {
  for (uint32_t seed = 0; seed < 200 && !HasFailure(); ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Simulation(seed, GetParam()).Run();
  }
}

std::string FaultName(const ::testing::TestParamInfo<Fault>& info) {
  constexpr const char* kNames[] = {"None", "Dies", "Freezes", "Stops", "Differs", "Leaves"};
  return kNames[static_cast<int>(info.param)];
}

INSTANTIATE_TEST_SUITE_P(Faults, GroupSimulationTest,
                         ::testing::Values(Fault::kNone, Fault::kDies, Fault::kFreezes,
                                           Fault::kStops, Fault::kDiffers, Fault::kLeaves),
                         FaultName);

}  // namespace
}  // namespace psd::services
