#pragma once

// Drives the owner and user ledgers, loans and creations of several workers through a history.
// Messages are delayed, reordered, repeated and lost, calls are given up, a session ends on one
// side before the other side notices, and workers crash and start again. The rpc layer of this
// world keeps the guarantees of core/rpc: a call of a session runs at most once, and the caller
// learns that the session is lost before the next one begins.

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

// Counts of rare events.
struct Probes {
  uint64_t sessions_ended = 0;
  uint64_t restarts = 0;
  uint64_t given_up = 0;
  uint64_t repeated = 0;
  uint64_t answers_taken_back = 0;    // answers to calls that were given up
  uint64_t forks_while_made = 0;      // forks counted while their value was under creation
  uint64_t made_for_nobody = 0;       // values that no longer had a holder when they were made
  uint64_t refused_forks = 0;         // forks of values that were gone
  uint64_t loans_ended_by_death = 0;  // loans that ended with their receiver's session
};

// A mistake that the world makes on purpose, to show that the simulation notices it.
enum class Mistake {
  kNone,
  kLentReferenceIsNotKept,
  kLoansOutliveTheirSession,
  kUncountedReferenceIsPassedOn,
};

class LedgerWorld {
 public:
  // Requires: workers <= 10.
  explicit LedgerWorld(int workers, Mistake mistake = Mistake::kNone);

  // Plays the history and then lets the world come to rest. Returns the first violation of an
  // invariant, or "".
  std::string Run(const History& history);
  const Probes& probes() const { return probes_; }

 private:
  enum class Kind {
    kCreate,   // creates a value on the callee; the caller holds `fork` of it
    kLookup,   // asks the callee for a fork of one of its values
    kAsk,      // asks the callee for one of its references to a value of another worker
    kPass,     // passes a reference as the argument of a function on the callee
    kFork,     // asks the owner to count `fork`
    kCounted,  // tells the lender of `fork` that the owner has counted the borrower's own fork
    kRelease,  // tells the owner that the caller no longer holds `fork`
    kCancel,   // gives up the call `id`
  };
  struct Reference {
    int owner = 0;
    Incarnation owner_life = 0;
    GlobalId value;
    GlobalId fork;
  };
  // A worker's session on another worker.
  struct Session {
    Incarnation there = 0;
    uint64_t epoch = 0;
    bool operator==(const Session& o) const { return there == o.there && epoch == o.epoch; }
  };
  // A worker that keeps a value alive for another worker, and the fork by which it does so.
  struct Keeper {
    int worker = 0;
    Incarnation life = 0;
    GlobalId fork;
    uint64_t epoch = 0;  // of the session that counts the fork
  };
  struct Call {
    uint64_t id = 0;
    Kind kind = Kind::kCreate;
    int caller = 0;
    int callee = 0;
    Incarnation caller_life = 0;
    Session session;
    Reference about;
    Keeper keeper;  // for kPass, for kFork, and for the answer of kAsk
    // For kFork: the way in which the caller got the reference.
    std::optional<GlobalId> lent;  // set if it came in an answer: the id of the loan
    uint64_t lent_in = 0;          // the epoch of the session on the lender in which it was lent
    uint64_t passed_by = 0;        // the call of which it was an argument
  };
  struct Message {
    enum class What { kRequest, kAnswer, kMade, kSessionEnds, kSessionLost };
    What what = What::kRequest;
    Call call;
    bool ok = true;
  };
  struct Handle {
    Reference about;
    uint64_t epoch = 0;    // of the session that counts the fork
    bool created = false;  // this worker created the value
    bool mine = true;      // a variable holds the handle
    int in_calls = 0;      // the number of calls that have the handle as an argument
  };
  struct Worker {
    explicit Worker(Incarnation incarnation) : life(incarnation), ids(incarnation) {}
    Incarnation life;
    IdSource ids;
    OwnerLedger owner;
    UserLedger user;
    Loans loans;
    std::set<GlobalId> hosted;                         // values that exist here
    std::set<GlobalId> under_creation;                 // values that are being made here
    std::map<GlobalId, Handle> handles;                // by fork
    std::map<int, Session> sessions;                   // this worker's sessions on others
    std::map<int, SessionKey> here;                    // the others' sessions on this worker
    std::set<std::pair<Incarnation, uint64_t>> ended;  // sessions of others that have ended here
    std::map<uint64_t, Call> calls;                    // calls from here that have no answer yet
    std::map<uint64_t, Message> answered;              // answers to calls of others
    std::map<uint64_t, Call> serving;                  // calls of others that are not answered yet
    std::set<uint64_t> cancelled;                      // calls of others that were given up
  };

  // ---- steps
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
  // Returns whether the session of the request is alive at the callee. Begins it if it is new.
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
  // Returns whether the owner must still have the value of this kFork.
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
