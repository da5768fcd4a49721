#pragma once

// Finds workers that this one has never met, or that have moved, by asking the registrar.

#include <optional>
#include <string>

#include "absl/container/flat_hash_set.h"
#include "core/base/future.h"
#include "core/base/mutex.h"
#include "core/rpc/registrar/registrar_client.h"
#include "core/rpc/rpc_agent.h"

namespace psd::rpc {

// Thread-safe. Outlives the agent's calls: destroy it after the agent's Shutdown.
class PeerDirectory {
 public:
  explicit PeerDirectory(rpc::RpcAgent& agent) : agent_(agent) {}
  PeerDirectory(const PeerDirectory&) = delete;
  PeerDirectory& operator=(const PeerDirectory&) = delete;

  // The name of the worker that keeps the list of workers; empty if there is none.
  std::string registrar() const PSD_EXCLUDES(mutex_);
  void SetRegistrar(const std::string& name) PSD_EXCLUDES(mutex_);

  // Makes `worker` known to the agent. The future is ready at once if the worker is known. A worker
  // that was found here earlier and cannot be reached any more is looked for again in the
  // background, for later calls. Errors: NOT_FOUND (there is no registrar, or it knows no such
  // name; the nearest name is given), UNAVAILABLE (the worker does not listen, so it must connect
  // here by itself); those of asking.
  Future<Unit> MakeKnown(const std::string& worker) PSD_EXCLUDES(mutex_);
  // As MakeKnown, but always asks the registrar.
  Future<Unit> Find(const std::string& worker) PSD_EXCLUDES(mutex_);

 private:
  struct Question {
    Future<World> world;
    bool is_new = false;  // whether this call asked it; otherwise it is shared with an earlier call
  };
  // Calls that ask at the same time share one question.
  Question Ask(const std::string& registrar) PSD_EXCLUDES(mutex_);
  // `again` is true if the answer to a shared question, which may be older than this search, did
  // not name the worker.
  void AskAndFind(const std::string& worker, bool again, const Promise<Unit>& found)
      PSD_EXCLUDES(mutex_);
  void FindIn(const World& world, const std::string& worker, bool may_be_old,
              const Promise<Unit>& found) PSD_EXCLUDES(mutex_);

  rpc::RpcAgent& agent_;
  mutable Mutex mutex_;  // leaf
  std::string registrar_ PSD_GUARDED_BY(mutex_);
  std::optional<Future<World>> asking_ PSD_GUARDED_BY(mutex_);
  // Workers whose addresses the registrar gave.
  absl::flat_hash_set<std::string> found_ PSD_GUARDED_BY(mutex_);
  // Workers that are being looked for again in the background.
  absl::flat_hash_set<std::string> searching_ PSD_GUARDED_BY(mutex_);
};

}  // namespace psd::rpc
