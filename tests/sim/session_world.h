#pragma once

// A world of a few workers in one process, made from a seed: the session machines over a simulated
// network that loses, duplicates, delays and reorders messages and cuts links. Its processes stop,
// resume, die, restart and take over names. An oracle knows what was applied where.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/base/memory_budget.h"
#include "core/rpc/worker_sessions.h"
#include "server/registrar/registrar_ledger.h"

namespace psd::rpc::sim {

// One call of the workload, with everything that happened to it.
struct SimCall : Opaque {
  uint64_t uid = 0;
  MethodKind kind = MethodKind::kMutation;
  bool gives = false;  // whether its answer gives something
  bool joins = false;  // makes the caller a member at the callee, as long as its session lives
  int caller = 0;      // its process
  std::string peer;
  CallId id = 0;
  Incarnation only_incarnation = 0;
  int completed = 0;
  absl::Status status;
  bool orphaned = false;  // its caller died
  Incarnation answered_by = 0;
  std::vector<Incarnation> applied_at;
  uint32_t attempt = 0;  // for a read: the latest attempt that was sent
  // For a read: the latest attempt that a session refused to run, and the callee.
  uint32_t refused_attempt = 0;
  Incarnation refused_by = 0;
};

// Identifies a call at its callee.
struct CallKey {
  CallId id = 0;
  uint64_t sequence = 0;  // 0: a read
  uint64_t epoch = 0;     // of the session in which it is answered
};

// A grant of an answer, for example a fork. The callee holds it under the caller's session until
// the caller has taken it, it is taken back, or the session has ended.
struct SimGrant {
  int at = 0;  // process
  uint64_t epoch = 0;
  std::shared_ptr<SimCall> call;
  bool held = true;
  bool taken = false;
};

struct SimAnswer : Opaque {
  CallKey call;
  Incarnation from = 0;
  uint32_t attempt = 0;  // see ReplyMeta
  absl::Status status;
  // Null if the answer gives nothing. An error has it if it replaces an answer that was not kept.
  // Shared with that answer and with the oracle.
  std::shared_ptr<SimGrant> gives;
};

// Rules that can be switched off, to show that the histories are hard enough.
struct Rules {
  // If false, the end of any session of a member ends its membership.
  bool notices_carry_epochs = true;
};

std::string NameOf(int worker);
// Adds each counter of `from` to that of `to`.
void AddProbes(const SessionProbes& from, SessionProbes& to);

class World {
 public:
  explicit World(uint64_t seed, const Rules& rules = {});

  // Runs the world with faults, then heals everything and waits. Returns a description of what went
  // wrong, or an empty text.
  std::string Run();

  const SessionProbes& probes() const { return probes_; }
  // Counts of rare events other than the probes.
  struct Counts {
    uint64_t calls_refused = 0;         // by a session without memory or with too many reads
    uint64_t answers_refused = 0;       // by the carrier
    uint64_t answers_without_room = 0;  // at the caller; they ended a call
    uint64_t answers_not_kept = 0;      // whose caller asked again and got the error
  };
  const Counts& counts() const { return counts_; }

 private:
  struct Wire {
    Header control;  // for requests and replies only the kind
    RequestMeta meta;
    std::shared_ptr<SimCall> call;
    std::shared_ptr<SimAnswer> answer;
    std::string from;  // name of the sender
    std::string to;
  };
  using WirePtr = std::shared_ptr<const Wire>;

  struct Process {
    int id = 0;
    std::string name;
    Incarnation incarnation = 0;
    bool listens = false;
    bool alive = true;
    bool leaving = false;  // whether it is stopping in order, and begins nothing new
    absl::Time paused_until = absl::InfinitePast();
    absl::Time tick_at = absl::InfiniteFuture();
    std::shared_ptr<MemoryAccount> memory;  // shared with its sessions; null: there is no limit
    server::RegistrarLedger members;
    std::map<std::string, uint64_t> joined;  // the session in which each caller joined last
    std::map<int, uint64_t> greeted;         // by process: the number of the latest greeting
    std::unique_ptr<WorkerSessions> sessions;
  };
  struct Link {
    int ends[2] = {0, 0};  // processes
    bool open[2] = {true, true};
    bool swallows[2] = {false, false};  // whether messages that this end sends are lost
  };
  struct Event {
    absl::Time when;
    uint64_t order;
    std::function<void()> run;
    bool operator<(const Event& other) const {
      return when != other.when ? when > other.when : order > other.order;
    }
  };

  // ---- Chance.
  bool Chance(double p) { return std::uniform_real_distribution<>(0, 1)(random_) < p; }
  int64_t Pick(int64_t from, int64_t to) {
    return std::uniform_int_distribution<int64_t>(from, to)(random_);
  }
  absl::Duration Within(int64_t from_ms, int64_t to_ms) {
    return absl::Microseconds(Pick(from_ms * 1000, to_ms * 1000));
  }
  absl::Duration Latency();

  // ---- Events.
  void At(absl::Time when, std::function<void()> run);
  // Runs `run` on a process: not at all if it is dead, later if it is stopped.
  void On(int process, absl::Duration delay, std::function<void(Process&)> run);
  void RunUntil(absl::Time end);

  // ---- Processes.
  Process& Spawn(const std::string& name, bool listens);
  void Kill(int process);
  void ConnectToOwners(Process& process);
  Process* Living(const std::string& name);
  void ArmTick(Process& process);
  void Perform(Process& process, Actions& actions);
  void CheckGreeting(Process& process, const SendControlAction& sent);
  void Step(Process& process, const std::function<void(Actions&)>& input);
  void SendRequest(Process& process, SendRequestAction& request);

  // ---- Network.
  void Dial(Process& process, const DialAction& dial);
  void Send(Process& process, LinkId link, Wire wire);
  void Deliver(LinkId link, int end, const WirePtr& wire, absl::Duration delay);
  void DeliverLate(const WirePtr& wire);
  void Receive(Process& process, LinkId link, const WirePtr& wire);
  void ReceiveRequest(Process& process, LinkId link, const Wire& wire, Actions& actions);
  void ReceiveAnswer(Process& process, LinkId link, const Wire& wire, Actions& actions);
  void CloseEnd(LinkId link, int end, absl::Duration delay);
  void Cut(LinkId link);

  // ---- Workload and faults.
  void StartCall(Process& process);
  void Ask(Process& process, int peer, MethodKind kind, absl::Time deadline);
  void Meet();
  void Leave();
  void AwaitSettled(int process, absl::Time until);
  void FinishLeaving(Process& process);
  void Serve(Process& process, const std::shared_ptr<SimCall>& call, const RequestMeta& meta);
  void Answer(Process& process, const std::shared_ptr<SimCall>& call, const RequestMeta& meta,
              bool ok);
  static std::shared_ptr<SimAnswer> NewAnswer(const Process& process, const CallKey& call,
                                              absl::Status status);
  static std::shared_ptr<SimAnswer> ErrorInstead(const Process& process, const CallKey& call);
  // Sends `sent`; `kept` is what the session remembers of it.
  void SendAnswer(Process& process, LinkId link, const std::shared_ptr<SimAnswer>& kept,
                  const std::shared_ptr<SimAnswer>& sent);
  void Fault();
  void StopProcess();
  void RestartProcess();
  void TakeOver();
  void Heal();

  // ---- The oracle.
  static void Join(Process& process, const Process& caller, uint64_t epoch);
  // Returns null if the session has ended.
  std::shared_ptr<SimGrant> Give(const Process& process, const std::shared_ptr<SimCall>& call,
                                 uint64_t epoch);
  void Take(SimGrant& grant);
  void TakeBack(const SimAnswer& dropped);
  void EndGrants(const Process& process, uint64_t epoch);
  void EndSession(Process& process, const PeerInfo& peer, uint64_t epoch);
  bool Settled() const;
  bool SessionLives(const SimGrant& grant) const;
  bool Leaks(const SimGrant& grant) const;
  std::string JudgeKept() const;
  std::string JudgeMembers() const;
  std::string Judge() const;
  std::string JudgeCall(const SimCall& call) const;

  std::mt19937_64 random_;
  const Rules rules_;
  SessionOptions options_;
  size_t max_sessions_ = 65'536;
  size_t memory_bytes_ = 0;  // of each process; 0: no limit
  absl::Time now_ = absl::UnixEpoch();
  uint64_t order_ = 0;
  bool faulty_ = true;
  double trouble_ = 0;  // the rate of faults in this world
  // If not zero, the time that every message takes, apart from a small variation.
  absl::Duration one_way_;
  std::priority_queue<Event> events_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::map<LinkId, Link> links_;
  LinkId next_link_ = 1;
  int names_ = 0;
  int owners_ = 0;
  std::vector<std::shared_ptr<SimCall>> calls_;
  std::vector<std::shared_ptr<SimGrant>> given_;  // shared with the answers
  SessionProbes probes_;
  Counts counts_;
  std::string broken_;  // the first rule that was found broken
};

}  // namespace psd::rpc::sim
