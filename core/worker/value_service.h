#pragma once

// Values between workers: create, look up, fetch, assign, drop, list.

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "core/base/future.h"
#include "core/program/program.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/rref.h"
#include "core/store/parameter.h"
#include "core/worker/exchange.h"

namespace psd::worker {

// What a listing says of one named value.
struct ListedValue {
  std::string name;
  std::string kind;
  uint64_t version = 0;  // 0 for what is no parameter
  uint64_t bytes = 0;
};

// Both ends of the "value.*" methods. Thread-safe. Calls to the runtime's
// own name stay in the process. Errors: those of the call (RpcAgent::StartCall) and of the store.
class ValueService {
 public:
  // What a named value becomes when a creation program makes it.
  enum class Hosted {
    kTensor,  // a parameter if it is floating
    kRows,    // an embedding table; requires_grad is that of its lookups
  };

  // Registers the methods; `runtime` outlives the service and has not started.
  explicit ValueService(Runtime& runtime);

  Future<rref::RRef> GetOrCreate(const std::string& owner, const std::string& name,
                                 const program::Program& create, bool requires_grad,
                                 const rpc::CallOptions& options, Hosted hosted = Hosted::kTensor);
  Future<rref::RRef> Lookup(const std::string& owner, const std::string& name,
                            const rpc::CallOptions& options);
  // Ends a name of this worker; the value goes when the last fork and handle have gone. With `only`
  // the name is ended only if that value has it.
  absl::Status DropHere(const std::string& name, GlobalId only = {});
  Future<Unit> Drop(const std::string& owner, const std::string& name,
                    const rpc::CallOptions& options);
  Future<uint64_t> Assign(const rref::RRef& parameter, const Tensor& elements,
                          const rpc::CallOptions& options);
  Future<std::vector<ListedValue>> List(const std::string& owner, const std::string& prefix,
                                        const rpc::CallOptions& options);

  // One exchange per owner; in the order of `rrefs`. Fails with the first owner's error.
  Future<Values> Fetch(const std::vector<rref::RRef>& rrefs, const ContextPtr& context,
                       const rpc::CallOptions& options);
  // The same under a NoGradGuard too: for what a backward starts from.
  Future<Values> FetchRecorded(const std::vector<rref::RRef>& rrefs, const ContextPtr& context,
                               const rpc::CallOptions& options);
  // As Fetch, for who waits: the answers are decoded on the caller's thread, and are its own.
  absl::StatusOr<Values> FetchAndWait(const std::vector<rref::RRef>& rrefs,
                                      const ContextPtr& context, const rpc::CallOptions& options);

  // Parameters outside of any context, each with the version that it is.
  // Errors: INVALID_ARGUMENT for what is no parameter.
  Future<std::vector<store::PinnedVersion>> Pull(const std::vector<rref::RRef>& rrefs,
                                                 const rpc::CallOptions& options);

 private:
  using CallPtr = std::shared_ptr<rpc::ServerCall>;
  // What "value.get_or_create" asks for.
  struct Creation {
    std::string name;
    std::shared_ptr<const program::CheckedProgram> program;  // shared with the store's creation
    bool rows = false;
    bool requires_grad = false;
  };
  void ServeGetOrCreate(const CallPtr& call);
  void GetOrCreateHere(const CallPtr& call, const Creation& creation);
  void ServeLookup(const CallPtr& call);
  void ServeDrop(const CallPtr& call);
  void ServeFetch(const CallPtr& call);
  void ReplyWithParameters(rpc::ServerCall& call, const ContextPtr& context,
                           const store::EntryGroup& group, bool versions);
  void ServeAssign(const CallPtr& call);
  void ServeList(const CallPtr& call);

  struct OwnerPart;
  static absl::StatusOr<std::vector<OwnerPart>> PartsByOwner(const std::vector<rref::RRef>& rrefs);
  template <typename T, typename Ask>
  static Future<std::vector<T>> AskOwners(const std::vector<rref::RRef>& rrefs, const Ask& ask);
  void Discard(const std::vector<OwnerPart>& parts, const std::vector<Future<rpc::Reply>>& replies);
  Future<Values> FetchFrom(const std::string& owner, std::vector<rref::RRef> rrefs,
                           const ContextPtr& context, const rpc::CallOptions& options);
  // With their history if they are recorded, else as constants.
  Future<Values> FetchHere(const std::vector<rref::RRef>& rrefs, bool record,
                           const rpc::CallOptions& options);
  // What an owner answered to a fetch of so many values.
  absl::StatusOr<Values> Fetched(const std::string& owner, size_t expected,
                                 const ContextPtr& context,
                                 const absl::StatusOr<rpc::Reply>& reply) const;
  Future<std::vector<store::PinnedVersion>> PullFrom(const std::string& owner,
                                                     std::vector<rref::RRef> rrefs,
                                                     const rpc::CallOptions& options);
  // "value.fetch", once all that `rrefs` refer to exists.
  // Requires: the creation of the parameter has ended.
  Future<uint64_t> SendAssign(const rref::RRef& parameter, const Tensor& elements,
                              const rpc::CallOptions& options);
  Future<rpc::Reply> StartFetch(const std::string& owner, const std::vector<rref::RRef>& rrefs,
                                const ContextPtr& context, bool versions,
                                const rpc::CallOptions& options);
  Future<rpc::Reply> SendFetch(const std::string& owner, const std::vector<rref::RRef>& rrefs,
                               const ContextPtr& context, bool versions,
                               const rpc::CallOptions& options);

  Runtime& runtime_;
};

// Counts a fork of `entry` for the caller and says so in a reply.
// Errors: NOT_FOUND if the value has been freed.
absl::StatusOr<rpc::Payload> ReferenceReply(Runtime& runtime, rpc::ServerCall& call,
                                            const store::EntryPtr& entry);
// The RRef that such a reply gives.
absl::StatusOr<rref::RRef> AdoptReference(Runtime& runtime, const std::string& owner,
                                          const rpc::Reply& reply);

}  // namespace psd::worker
