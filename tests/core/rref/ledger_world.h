#pragma once

// Owner and user ledgers, loans and creations of several workers, driven through one history:
// messages are delayed, reordered, repeated and lost, calls are given up, sessions end on one side
// before the other hears of it, workers crash and start again. rpc is what core/rpc promises: a
// call of a session is done at most once, and its loss is told before the next session begins.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "core/base/ids.h"
#include "core/rref/loans.h"
#include "core/rref/owner_ledger.h"
#include "core/rref/user_ledger.h"
#include "tests/core/rref/ledger_history.h"

namespace psd::rref::sim {

// How often what is rare happened.
struct Probes {
  uint64_t sessions_ended = 0;
  uint64_t restarts = 0;
  uint64_t given_up = 0;
  uint64_t repeated = 0;
  uint64_t answers_taken_back = 0;    // of calls that were given up
  uint64_t forks_while_made = 0;      // counted while their value was under creation
  uint64_t made_for_nobody = 0;       // nobody held it any more when it was made
  uint64_t refused_forks = 0;         // of values that were gone
  uint64_t loans_ended_by_death = 0;  // with their receiver's session
};

// A mistake to make, so that it can be seen that a mistake is seen.
enum class Mistake {
  kNone,
  kLentReferenceIsNotKept,
  kLoansOutliveTheirSession,
  kUncountedReferenceIsPassedOn,
};

class LedgerWorld {
 public:
  // At most ten workers.
  explicit LedgerWorld(int workers, Mistake mistake = Mistake::kNone);

  // Plays it, then lets everything come to rest. The first thing that is wrong, or "".
  std::string Run(const History& history);
  const Probes& probes() const { return probes_; }

 private:
  enum class Kind {
    kCreate,   // make a value, of which I hold `fork`
    kLookup,   // give me a fork of one of your values
    kAsk,      // give me one of your references to others' values
    kPass,     // a function of yours is to use my reference
    kFork,     // count `fork`
    kCounted,  // the reference that you lent me as `fork` is counted
    kRelease,  // I hold `fork` no more
    kCancel,   // I do not want the answer of call `id` any more
  };
  struct Reference {
    int owner = 0;
    Incarnation owner_life = 0;
    GlobalId value;
    GlobalId fork;
  };
  // Of a worker's session on another.
  struct Session {
    Incarnation there = 0;
    uint64_t epoch = 0;
    bool operator==(const Session& o) const { return there == o.there && epoch == o.epoch; }
  };
  // Who keeps a value alive for somebody else, and by which of its forks.
  struct Keeper {
    int worker = 0;
    Incarnation life = 0;
    GlobalId fork;
    uint64_t epoch = 0;  // of the session that counts it
  };
  struct Call {
    uint64_t id = 0;
    Kind kind = Kind::kCreate;
    int caller = 0;
    int callee = 0;
    Incarnation caller_life = 0;
    Session session;
    Reference about;
    Keeper keeper;  // kPass, kFork, and the answer of kAsk
    // kFork: how the reference came.
    std::optional<GlobalId> lent;  // in an answer, under this id
    uint64_t lent_in = 0;          // of this session on the lender
    uint64_t passed_by = 0;        // as the argument of this call
  };
  struct Message {
    enum class What { kRequest, kAnswer, kMade, kSessionEnds, kSessionLost };
    What what = What::kRequest;
    Call call;
    bool ok = true;
  };
  struct Handle {
    Reference about;
    uint64_t epoch = 0;    // of the session that counts it
    bool created = false;  // by this worker
    bool mine = true;      // a variable holds it
    int in_calls = 0;      // so many calls have it as an argument
  };
  struct Worker {
    explicit Worker(Incarnation incarnation) : life(incarnation), ids(incarnation) {}
    Incarnation life;
    IdSource ids;
    OwnerLedger owner;
    UserLedger user;
    Loans loans;
    std::set<GlobalId> hosted;                         // values that exist here
    std::set<GlobalId> under_creation;                 // or will
    std::map<GlobalId, Handle> handles;                // by fork
    std::map<int, Session> sessions;                   // on others
    std::map<int, SessionKey> here;                    // others' on this worker
    std::set<std::pair<Incarnation, uint64_t>> ended;  // of those here
    std::map<uint64_t, Call> calls;                    // from here, unanswered
    std::map<uint64_t, Message> answered;              // to calls of others
    std::map<uint64_t, Call> serving;                  // not answered yet
    std::set<uint64_t> cancelled;                      // before they came
  };

  // ---- what a step does
  void Play(const Step& step);
  void Create(int caller, int callee);
  void PassHandle(int caller, int callee, uint32_t which);
  void DropHandle(int holder, uint32_t which);
  void EndSessionOf(int caller, int callee);
  void Restart(int worker);
  void GiveUp(int caller, uint32_t which);
  void Deliver(size_t index, bool repeat);

  // ---- rpc
  Session& SessionOn(int caller, int callee);
  Call NewCall(Kind kind, int caller, int callee);
  void Send(const Call& call);
  void Answer(const Call& call, bool ok);
  void OnRequest(const Message& message);
  void OnAnswer(const Message& message);
  void OnSessionLost(const Call& call);
  // Whether the request belongs to a session that lives at its callee; begins one that is new.
  bool Admit(const Call& call);
  void EndHere(int callee, int caller, SessionKey key);

  // ---- callee
  void Serve(const Call& call);
  void ServeCreate(const Call& call);
  void ServeLookup(Call call);
  void ServeAsk(Call call);
  void ServePass(const Call& call);
  void ServeFork(const Call& call);
  void ServeCancel(const Call& call);
  void Made(const Call& call);
  // Whether the value that this kFork is about must be there.
  bool MustBeThere(const Call& fork) const;
  bool IsThere(const Worker& owner, GlobalId value) const;
  bool MayBePassedOn(const Worker& holder, GlobalId fork, const Handle& handle) const;
  void Freed(Worker& owner, GlobalId value);

  // ---- caller
  void Succeeded(const Call& call);
  void Failed(const Call& call, bool may_exist);
  void Borrow(int holder, const Reference& from, Call fork);
  void BorrowEnded(const Call& call, bool ok);
  void LetGo(int holder, GlobalId fork);
  void Release(int holder, const std::optional<ForkRelease>& release);

  static std::string NameOf(int worker) { return absl::StrCat("worker", worker); }
  SessionKey KeyOf(const Call& call) const { return {call.caller_life, call.session.epoch}; }
  void Wrong(const std::string& what);
  void CheckNothingFreedEarly();
  void ComeToRest();
  void CheckNothingLeft();

  const Mistake mistake_;
  Incarnation next_life_ = 1;
  uint64_t next_call_ = 1;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::vector<Message> network_;
  std::string wrong_;
  Probes probes_;
};

}  // namespace psd::rref::sim
