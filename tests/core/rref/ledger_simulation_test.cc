// Owner and user ledgers of several workers, driven through random interleavings: messages are
// delayed, reordered and repeated, sessions end at any time. What the protocol promises is checked
// after every event and at the end.

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/rref/owner_ledger.h"
#include "core/rref/user_ledger.h"
#include "gtest/gtest.h"

namespace psd::rref {
namespace {

constexpr int kWorkers = 4;

enum class Kind {
  kCreate,        // user -> owner: make `value`, I hold `fork`
  kCreated,       // owner -> user
  kCreateFailed,  // owner -> user, or the session's end in its place
  kLookup,        // user -> owner: give me a fork of `value`
  kForked,        // owner -> user: `fork` is counted
  kShare,         // user -> user: hold `fork` of `value` on `owner`
  kForkRequest,   // user -> owner: count `fork`
  kForkAnswer,    // owner -> user
  kChildAccept,   // user -> the sender of kShare
  kRelease,       // user -> owner
};

struct Message {
  Kind kind;
  int from = 0;
  int to = 0;
  uint64_t epoch = 0;  // of the session between the user (`user`) and the owner (`owner`)
  int owner = 0;
  int user = 0;
  GlobalId value;
  GlobalId fork;
  int parent = 0;
  bool ok = true;
};

struct Worker {
  explicit Worker(int number) : ids(static_cast<Incarnation>(number + 1)) {}
  IdSource ids;
  OwnerLedger owner;
  UserLedger user;
  std::set<GlobalId> hosted;            // values that exist here
  std::map<GlobalId, Message> handles;  // fork -> what it refers to, while a handle lives
  std::set<GlobalId> seen;              // requests that were applied (rpc applies each once)
  std::map<GlobalId, bool> answers;     // to fork requests; rpc repeats a refusal as it was
};

class Simulation {
 public:
  explicit Simulation(uint64_t seed) : random_(seed) {
    for (int i = 0; i < kWorkers; ++i) workers_.push_back(std::make_unique<Worker>(i));
    for (auto& row : epochs_) {
      for (uint64_t& epoch : row) epoch = 1;
    }
  }

  void Run(int steps) {
    for (int i = 0; i < steps; ++i) {
      Step();
      CheckNothingFreedEarly();
      if (testing::Test::HasFailure()) return;
    }
    do {  // what arrives may be one more handle
      for (int w = 0; w < kWorkers; ++w) {
        while (!workers_[w]->handles.empty()) DropHandle(w);
      }
      if (!network_.empty()) DeliverOne(/*repeat=*/false);
    } while (!network_.empty() || AnyHandle());
    for (auto& worker : workers_) {
      EXPECT_EQ(worker->user.NumForks(), 0u);
      EXPECT_EQ(worker->user.NumPending(), 0u);
      EXPECT_EQ(worker->user.NumChildrenInFlight(), 0u);
      EXPECT_EQ(worker->owner.NumForks(), 0u);
      EXPECT_EQ(worker->owner.NumValues(), 0u);
      EXPECT_TRUE(worker->hosted.empty());
    }
  }

 private:
  bool AnyHandle() const {
    return std::any_of(workers_.begin(), workers_.end(),
                       [](const auto& worker) { return !worker->handles.empty(); });
  }

  uint64_t Below(uint64_t bound) { return random_() % bound; }
  Incarnation IncarnationOf(int worker) { return workers_[worker]->ids.incarnation(); }
  static std::string Name(int worker) { return absl::StrCat("worker", worker); }
  SessionKey Key(int user, uint64_t epoch) { return {IncarnationOf(user), epoch}; }

  void Step() {
    switch (Below(12)) {
      case 0:
        return Create();
      case 1:
        return Lookup();
      case 2:
        return Share();
      case 3:
        return DropHandle(static_cast<int>(Below(kWorkers)));
      case 4:
        if (Below(20) == 0) EndSession();
        return;
      default:
        if (!network_.empty()) DeliverOne(/*repeat=*/Below(5) == 0);
    }
  }

  // Two different workers.
  void PickPair(int* user, int* owner) {
    *user = static_cast<int>(Below(kWorkers));
    *owner = (*user + 1 + static_cast<int>(Below(kWorkers - 1))) % kWorkers;
  }

  Message NewMessage(Kind kind, int user, int owner) {
    Message m;
    m.kind = kind;
    m.from = m.user = user;
    m.to = m.owner = owner;
    m.epoch = epochs_[user][owner];
    return m;
  }

  void Create() {
    int user, owner;
    PickPair(&user, &owner);
    Worker& self = *workers_[user];
    Message m = NewMessage(Kind::kCreate, user, owner);
    m.value = self.ids.Next();
    m.fork = self.ids.Next();
    self.user.Add(Name(owner), IncarnationOf(owner), m.value, m.fork, ForkState::kPending);
    self.handles[m.fork] = m;
    network_.push_back(m);
  }

  void Lookup() {
    int user, owner;
    PickPair(&user, &owner);
    Message m = NewMessage(Kind::kLookup, user, owner);
    if (workers_[owner]->hosted.empty()) return;
    m.value = *workers_[owner]->hosted.begin();
    network_.push_back(m);
  }

  // A handle on its way to a third worker.
  void Share() {
    int from = static_cast<int>(Below(kWorkers));
    Worker& self = *workers_[from];
    if (self.handles.empty()) return;
    auto it = std::next(self.handles.begin(), Below(self.handles.size()));
    int to = (from + 1 + static_cast<int>(Below(kWorkers - 1))) % kWorkers;
    if (to == it->second.owner) return;
    Message m = NewMessage(Kind::kShare, to, it->second.owner);
    m.from = from;
    m.to = to;
    m.parent = from;
    m.value = it->second.value;
    m.fork = self.ids.Next();
    if (self.user.AddChild(it->first, m.fork).ok()) network_.push_back(m);
  }

  void DropHandle(int w) {
    Worker& self = *workers_[w];
    if (self.handles.empty()) return;
    auto it = std::next(self.handles.begin(), Below(self.handles.size()));
    GlobalId fork = it->first;
    Message about = it->second;
    self.handles.erase(it);
    Release(about, self.user.Drop(fork));
  }

  void Release(const Message& about, const std::optional<ForkRelease>& release) {
    if (!release.has_value()) return;
    EXPECT_EQ(release->owner, Name(about.owner));
    Message m = NewMessage(Kind::kRelease, about.user, about.owner);
    m.value = release->value;
    m.fork = release->fork;
    network_.push_back(m);
  }

  void EndSession() {
    int user, owner;
    PickPair(&user, &owner);
    uint64_t epoch = epochs_[user][owner]++;
    for (GlobalId value : workers_[owner]->owner.EndSession(Key(user, epoch))) {
      Free(owner, value);
    }
    workers_[user]->user.SessionLost(Name(owner), IncarnationOf(owner),
                                     absl::AbortedError("session ended"));
  }

  void Free(int owner, GlobalId value) {
    EXPECT_EQ(workers_[owner]->hosted.erase(value), 1u) << "freed twice";
  }

  // Any message may come next. A repeated one stays in the network and comes again.
  void DeliverOne(bool repeat) {
    size_t index = Below(network_.size());
    Message m = network_[index];
    if (!repeat) {
      network_[index] = network_.back();
      network_.pop_back();
    }
    Deliver(m);
  }

  // Fences: the owner refuses requests of a session that has ended; rpc tells the caller.
  bool Current(const Message& m) { return epochs_[m.user][m.owner] == m.epoch; }

  void Deliver(const Message& m) {
    switch (m.kind) {
      case Kind::kCreate:
        return OnCreate(m);
      case Kind::kCreated:
        return OnCreated(m);
      case Kind::kCreateFailed:
        return Release(m, workers_[m.user]->user.Fail(m.fork, absl::AbortedError("failed"), false));
      case Kind::kLookup:
        return OnLookup(m);
      case Kind::kForked:
        return OnForked(m);
      case Kind::kShare:
        return OnShare(m);
      case Kind::kForkRequest:
        return OnForkRequest(m);
      case Kind::kForkAnswer:
        return OnForkAnswer(m);
      case Kind::kChildAccept:
        return OnChildAccept(m);
      case Kind::kRelease:
        return OnRelease(m);
    }
  }

  void Reply(Message m, Kind kind) {
    m.kind = kind;
    m.from = m.owner;
    m.to = m.user;
    network_.push_back(m);
  }

  void OnCreate(const Message& m) {
    if (!Current(m)) return Reply(m, Kind::kCreateFailed);
    Worker& owner = *workers_[m.owner];
    if (!owner.seen.insert(m.fork).second) return;  // rpc answers repeats from memory
    if (Below(8) == 0) return Reply(m, Kind::kCreateFailed);
    owner.hosted.insert(m.value);
    if (!owner.owner.AddFork(m.value, m.fork, Key(m.user, m.epoch))) {
      return Free(m.owner, m.value);
    }
    Reply(m, Kind::kCreated);
  }

  // The answer of a session that has ended is dropped by rpc, which fails the call instead.
  void OnCreated(const Message& m) {
    UserLedger& user = workers_[m.user]->user;
    if (!Current(m)) return Release(m, user.Fail(m.fork, absl::AbortedError("lost"), false));
    Release(m, user.Confirm(m.fork, IncarnationOf(m.owner)));
  }

  void OnLookup(Message m) {
    Worker& owner = *workers_[m.owner];
    if (!Current(m) || owner.hosted.count(m.value) == 0) return;
    m.fork = owner.ids.Next();
    if (owner.owner.AddFork(m.value, m.fork, Key(m.user, m.epoch))) Reply(m, Kind::kForked);
  }

  void OnForked(const Message& m) {
    Worker& user = *workers_[m.user];
    if (!Current(m) || !user.seen.insert(m.fork).second) return;
    user.user.Add(Name(m.owner), IncarnationOf(m.owner), m.value, m.fork, ForkState::kConfirmed);
    user.handles[m.fork] = m;
  }

  void OnShare(Message m) {
    Worker& user = *workers_[m.user];
    if (!user.seen.insert(m.fork).second) return;
    m.epoch = epochs_[m.user][m.owner];
    user.user.Add(Name(m.owner), IncarnationOf(m.owner), m.value, m.fork, ForkState::kPending);
    user.handles[m.fork] = m;
    m.kind = Kind::kForkRequest;
    m.from = m.user;
    m.to = m.owner;
    network_.push_back(m);
  }

  void OnForkRequest(Message m) {
    Worker& owner = *workers_[m.owner];
    auto [answer, first] = owner.answers.try_emplace(m.fork, false);
    if (first || answer->second) {  // a request that was granted may be granted again
      answer->second = Current(m) && owner.hosted.count(m.value) > 0 &&
                       owner.owner.AddFork(m.value, m.fork, Key(m.user, m.epoch));
    }
    m.ok = answer->second;
    Reply(m, Kind::kForkAnswer);
  }

  void OnForkAnswer(Message m) {
    Worker& user = *workers_[m.user];
    if (m.ok && Current(m)) {
      Release(m, user.user.Confirm(m.fork, IncarnationOf(m.owner)));
    } else {
      Release(m, user.user.Fail(m.fork, absl::NotFoundError("no such value"), false));
    }
    m.kind = Kind::kChildAccept;  // either way the child has no need of its parent any more
    m.from = m.user;
    m.to = m.parent;
    network_.push_back(m);
  }

  void OnChildAccept(Message m) {
    UserLedger& parent = workers_[m.parent]->user;
    auto release = parent.ChildAccepted(m.fork);
    m.user = m.parent;
    Release(m, release);
  }

  void OnRelease(const Message& m) {
    if (!Current(m)) return;
    if (workers_[m.owner]->owner.DeleteFork(m.value, m.fork, Key(m.user, m.epoch))) {
      Free(m.owner, m.value);
    }
  }

  // A confirmed fork keeps its value: nobody who may use it finds it gone.
  void CheckNothingFreedEarly() {
    for (auto& worker : workers_) {
      for (const auto& [fork, about] : worker->handles) {
        if (worker->user.state(fork) != ForkState::kConfirmed) continue;
        EXPECT_EQ(workers_[about.owner]->hosted.count(about.value), 1u) << fork.ToString();
        EXPECT_GT(workers_[about.owner]->owner.ForkCount(about.value), 0u) << fork.ToString();
      }
    }
  }

  std::mt19937_64 random_;
  std::vector<std::unique_ptr<Worker>> workers_;
  uint64_t epochs_[kWorkers][kWorkers];
  std::vector<Message> network_;
};

TEST(LedgerSimulation, NothingIsFreedEarlyAndNothingIsLeft) {
  for (uint64_t seed = 1; seed <= 300; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Simulation(seed).Run(300);
    if (HasFailure()) return;
  }
}

TEST(LedgerSimulation, LongRuns) {
  for (uint64_t seed = 1001; seed <= 1003; ++seed) {
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    Simulation(seed).Run(2'000);
    if (HasFailure()) return;
  }
}

}  // namespace
}  // namespace psd::rref
