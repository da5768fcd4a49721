#pragma once

// A world of a few workers in one process, made from a seed: the session machines over an imagined
// network that loses, doubles, delays, reorders and cuts, with processes that stop, resume, die,
// restart and take over names. An oracle knows what was applied where.

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "core/rpc/worker_sessions.h"
#include "server/registrar/registrar_ledger.h"

namespace psd::rpc::sim {

// One call of the workload, and all that happened to it.
struct SimCall : Opaque {
  uint64_t uid = 0;
  MethodKind kind = MethodKind::kMutation;
  bool joins = false;  // makes the caller a member at the callee, as long as its session lives
  int caller = 0;      // process
  std::string peer;
  CallId id = 0;
  Incarnation only_incarnation = 0;
  int completed = 0;
  absl::Status status;
  bool ok = false;
  bool orphaned = false;  // its caller died
  Incarnation answered_by = 0;
  std::vector<Incarnation> applied_at;
  uint32_t attempt = 0;  // of a read: the latest that was sent
};

struct SimAnswer;

// What may be put back to how it was, to show that the histories are hard enough.
struct Rules {
  bool notices_carry_epochs = true;  // otherwise whoever's session has ended is no member any more
};

class World {
 public:
  explicit World(uint64_t seed, const Rules& rules = {});

  // Lets the faults rage, then heals everything and waits. Returns what went wrong; empty: nothing.
  std::string Run();

  const SessionProbes& probes() const { return probes_; }
  uint64_t deliveries() const { return deliveries_; }

 private:
  struct Wire {
    Header control;  // for requests and replies only the kind
    RequestMeta meta;
    std::shared_ptr<SimCall> call;
    CallId call_id = 0;
    std::shared_ptr<Opaque> answer;
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
    bool leaving = false;  // in an orderly way: it begins nothing new
    absl::Time paused_until = absl::InfinitePast();
    absl::Time tick_at = absl::InfiniteFuture();
    server::RegistrarLedger members;
    std::map<std::string, uint64_t> joined;  // in which session each caller joined last
    std::map<int, uint64_t> greeted;         // by process: the number of the latest greeting
    std::unique_ptr<WorkerSessions> sessions;
  };
  struct Link {
    int ends[2] = {0, 0};  // processes
    bool open[2] = {true, true};
    bool swallows[2] = {false, false};  // what this end sends vanishes
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
  // On a process: nothing when it is dead, later when it is stopped.
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
  static void Join(Process& process, const Process& caller, uint64_t epoch);
  void GiveFork(const Process& process, const std::shared_ptr<SimAnswer>& answer);
  void DropFork(Opaque& dropped);
  void EndForks(const Process& process, uint64_t epoch);
  void EndSession(Process& process, const PeerInfo& peer, uint64_t epoch);
  void Fault();
  void StopProcess();
  void RestartProcess();
  void TakeOver();
  void Heal();
  std::string JudgeMembers() const;
  bool Settled() const;
  bool SessionLives(const SimAnswer& answer) const;
  bool Leaks(const SimAnswer& answer) const;
  std::string Judge() const;
  std::string JudgeCall(const SimCall& call) const;

  std::mt19937_64 random_;
  const Rules rules_;
  SessionOptions options_;
  absl::Time now_ = absl::UnixEpoch();
  uint64_t order_ = 0;
  bool faulty_ = true;
  double trouble_ = 0;      // of this world
  absl::Duration one_way_;  // if not zero, what every message takes, apart from a little
  std::priority_queue<Event> events_;
  std::vector<std::unique_ptr<Process>> processes_;
  std::map<LinkId, Link> links_;
  LinkId next_link_ = 1;
  int names_ = 0;
  int owners_ = 0;
  std::vector<std::shared_ptr<SimCall>> calls_;
  std::vector<std::shared_ptr<SimAnswer>> given_;  // answers that give something
  SessionProbes probes_;
  uint64_t deliveries_ = 0;
  std::string broken_;  // the first rule seen broken
};

}  // namespace psd::rpc::sim
