#pragma once

// A worker's side of the registrar: join, know the world, meet at barriers.

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/log.h"
#include "core/base/timer.h"
#include "core/rpc/rpc_agent.h"

namespace psd::worker {

enum class WorkerRole {
  kOwner,  // a daemon; groups never wait for it
  kTrainer,
};

struct JoinOptions {
  // The registrar's name; the agent must know how to reach it.
  std::string registrar;
  WorkerRole role = WorkerRole::kTrainer;
  // Trainers that the job will have, as all of them declare; 0: they come and go.
  uint32_t group_size = 0;
  // Where others may dial this worker; empty: it does not listen.
  std::string address;
};

struct Membership {
  uint32_t rank = 0;
  uint32_t world_size = 0;
};

struct WorldMember {
  std::string name;
  Incarnation incarnation = 0;
  uint32_t rank = 0;
  WorkerRole role = WorkerRole::kOwner;
  std::string address;
};

struct World {
  std::vector<WorldMember> members;  // by rank
  uint32_t group_size = 0;           // 0: not declared
  // Named by the registrar's configuration, and not there.
  std::vector<std::string> absent_owners;
};

// The world as `registrar`, which `agent` can reach, knows it: anybody may ask.
Future<World> AskWorld(rpc::RpcAgent& agent, const std::string& registrar,
                       const rpc::CallOptions& call);

// Thread-safe. Once joined it stays joined: when the registrar was restarted, or has ended this
// worker's session, it joins again by itself; training does not wait for that. It logs
// registrar_joined, registrar_join_failed and registrar_lost.
class RegistrarClient {
 public:
  // Before the agent starts. `agent`, `timers` and `logger` outlive the client's last call, not
  // necessarily the client.
  RegistrarClient(rpc::RpcAgent& agent, TimerQueue& timers, Logger& logger);
  // No callback touches anything after this.
  ~RegistrarClient();
  RegistrarClient(const RegistrarClient&) = delete;
  RegistrarClient& operator=(const RegistrarClient&) = delete;

  // Asks once. Errors: those of the call; what the registrar says (ALREADY_EXISTS,
  // FAILED_PRECONDITION for another group size, RESOURCE_EXHAUSTED for a complete group).
  Future<Membership> Join(const JoinOptions& options, const rpc::CallOptions& call);

  // Asks until it has joined, in the background: for a daemon, which serves meanwhile.
  void KeepJoined(const JoinOptions& options);

  // As last told by the registrar; rank 0, world size 0 before it was joined.
  Membership membership() const;

  Future<World> GetWorld(const rpc::CallOptions& call);

  // Done when every worker of `members` (this one included) has called the barrier of that name;
  // empty: the declared group of trainers.
  // Errors: UNAVAILABLE or ABORTED naming a member that left or was restarted meanwhile; NOT_FOUND
  // for one that never joined; FAILED_PRECONDITION before Join; DEADLINE_EXCEEDED naming those that
  // were missing.
  Future<Unit> Barrier(const std::string& name, const std::vector<std::string>& members,
                       const rpc::CallOptions& call);

  // A barrier to which every member brings values, and from which it takes those of all, by name.
  // For small things: at most 1 MiB from each. Errors: as Barrier; INVALID_ARGUMENT.
  Future<std::map<std::string, rpc::Payload>> AllGather(const std::string& name,
                                                        const rpc::Payload& values,
                                                        const std::vector<std::string>& members,
                                                        const rpc::CallOptions& call);

  // Asks no more. Called before the agent shuts down.
  void Stop();

 private:
  class State;
  std::shared_ptr<State> state_;  // shared with callbacks under way
};

}  // namespace psd::worker
