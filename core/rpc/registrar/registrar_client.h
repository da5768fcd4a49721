#pragma once

// Client side of the registrar: joins the job, asks for its list of workers, and meets others at
// barriers.

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/log.h"
#include "core/base/timer.h"
#include "core/rpc/rpc_agent.h"

namespace psd::rpc {

enum class WorkerRole {
  kOwner,  // a daemon; the group of trainers does not include it
  kTrainer,
};

struct JoinOptions {
  // The name of the registrar, which the agent must be able to reach.
  std::string registrar;
  WorkerRole role = WorkerRole::kTrainer;
  // The number of trainers that the job will have, which all trainers must declare alike. 0 means
  // that trainers come and go.
  uint32_t group_size = 0;
  // The rank to ask for when joining for the first time. Without a value the registrar chooses.
  std::optional<uint32_t> wanted_rank;
  // The address at which others may dial this worker; empty if it does not listen.
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
  std::vector<WorldMember> members;  // sorted by rank
  uint32_t group_size = 0;           // 0 if not declared
  // The owners that are absent: those that the registrar's configuration names and that have not
  // joined, and those that joined and were lost.
  std::vector<std::string> absent_owners;
};

// Asks `registrar` for the list of workers. Workers that have not joined may ask too. Requires:
// `agent` can reach the registrar.
Future<World> AskWorld(rpc::RpcAgent& agent, const std::string& registrar,
                       const rpc::CallOptions& call);

// Keeps this worker joined. When the registrar was restarted or has ended this worker's session,
// the client joins again by itself, and training does not wait for that. It logs registrar_joined,
// registrar_join_failed and registrar_lost. Thread-safe.
class RegistrarClient {
 public:
  // Must be created before the agent starts. `agent`, `timers` and `logger` must outlive the last
  // call of the client, but not the client itself.
  RegistrarClient(rpc::RpcAgent& agent, TimerQueue& timers, Logger& logger);
  // Callbacks that come after this do nothing.
  ~RegistrarClient();
  RegistrarClient(const RegistrarClient&) = delete;
  RegistrarClient& operator=(const RegistrarClient&) = delete;

  // Tries to join, once. Errors: those of the call; those of the registrar (ALREADY_EXISTS;
  // FAILED_PRECONDITION for another group size; RESOURCE_EXHAUSTED if the group is complete).
  Future<Membership> Join(const JoinOptions& options, const rpc::CallOptions& call);

  // Tries to join, in the background, until that succeeds. For a daemon, which serves meanwhile.
  void KeepJoined(const JoinOptions& options);

  // The registrar's last answer. Rank and world size are 0 before the first one.
  Membership membership() const;

  // Ready when every worker of `members`, this one included, has called the barrier `name`. If
  // `members` is empty, the declared group of trainers takes part. Errors: UNAVAILABLE or ABORTED
  // naming a member that left or was restarted meanwhile; NOT_FOUND for a member that never joined;
  // FAILED_PRECONDITION before Join; DEADLINE_EXCEEDED naming the missing members.
  Future<Unit> Barrier(const std::string& name, const std::vector<std::string>& members,
                       const rpc::CallOptions& call);

  // A barrier to which every member brings values, and which returns the values of all members by
  // name. For small values: at most 1 MiB from each member. Errors: as Barrier; INVALID_ARGUMENT.
  Future<std::map<std::string, rpc::Payload>> AllGather(const std::string& name,
                                                        const rpc::Payload& values,
                                                        const std::vector<std::string>& members,
                                                        const rpc::CallOptions& call);

  // Stops trying to join. Must be called before the agent shuts down.
  void Stop();

 private:
  class State;
  std::shared_ptr<State> state_;  // shared with callbacks under way
};

}  // namespace psd::rpc
