#pragma once

// Values on other workers: creates, looks up, fetches, assigns, drops and lists them.

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "core/autograd/operators.h"
#include "core/base/clock.h"
#include "core/base/completion_threads.h"
#include "core/base/executor.h"
#include "core/base/future.h"
#include "core/change/change.h"
#include "core/change/changes.h"
#include "core/device_loans/device_loans.h"
#include "core/device_pieces/device_pulls.h"
#include "core/device_pieces/piece_collector.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/dist_autograd.h"
#include "core/dist_autograd/exchange.h"
#include "core/program/checked_program.h"
#include "core/program/program.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/rpc_agent.h"
#include "core/rref/creation_gate.h"
#include "core/rref/gate.h"
#include "core/rref/rref.h"
#include "core/rref/rref_context.h"
#include "core/store/on_device.h"
#include "core/store/parameter.h"
#include "core/store/store.h"
#include "core/store/value.h"

namespace psd::v1 {
class AssignReply;
class AssignRequest;
class FetchRequest;
class GetOrCreateRequest;
class ListReply;
class ListRequest;
class NameRequest;
}  // namespace psd::v1

namespace psd::services {

// One named value in a listing.
struct ListedValue {
  std::string name;
  std::string kind;
  uint64_t version = 0;  // 0 for a value that is neither a parameter nor a table of rows
  uint64_t bytes = 0;
};

// A page of a listing, sorted by name.
struct Listing {
  std::vector<ListedValue> values;
  bool more = false;  // whether values follow on further pages
};

// Client and server side of the "value.*" methods. Calls to the runtime's own name stay in the
// process. All client functions fail with the errors of the call (RpcAgent::StartCall) and of the
// store. Thread-safe.
class ValueService {
 public:
  // The kind of value that is made from the result of a creation program.
  enum class Hosted {
    kTensor,  // a tensor, which becomes a parameter if its dtype is floating
    kRows,    // an embedding table; requires_grad applies to its lookups
  };

  // The parts of the worker that the service uses. They must outlive the service.
  struct Uses {
    rpc::RpcAgent& agent;
    store::Store& store;
    change::Changes& changes;
    rref::RRefContext& rrefs;
    rref::CreationGate& creations;
    dist_autograd::DistAutograd& autograd;
    dist_autograd::Exchange& exchange;
    const OperatorRegistry& operators;  // the operators that programs may call
    const program::ProgramLimits& program_limits;
    Executor& executor;                       // reads values on devices
    std::shared_ptr<Executor> continuations;  // shared with the futures that users hold
    CompletionThreads& completions;           // send values on devices
    const Clock& clock;
    // Spares copies of values on devices. Shared with the pulls that are under way.
    std::shared_ptr<device_loans::DeviceLoans> loans;
    device_pieces::DevicePulls& pulls;
  };

  // Registers the methods. The agent must not have started.
  explicit ValueService(Uses uses);
  ~ValueService();
  ValueService(const ValueService&) = delete;
  ValueService& operator=(const ValueService&) = delete;

  // Returns the value called `name` on `owner`, and creates it by the program `create` if there is
  // none, on the owner's device called `device`. If that is empty or kAutoDevice, an existing value
  // may be on any device. A new one is made on the CPU if it is empty, and with kAutoDevice on the
  // device that Store::FindDevice chooses; only floating tensors and tables go there.
  // Errors: FAILED_PRECONDITION if it exists and is not what this call would create;
  // INVALID_ARGUMENT naming the owner's devices if it has no such device.
  Future<rref::RRef> GetOrCreate(const std::string& owner, const std::string& name,
                                 const program::Program& create, bool requires_grad,
                                 const rpc::CallOptions& options, Hosted hosted = Hosted::kTensor,
                                 const std::string& device = "");
  Future<rref::RRef> Lookup(const std::string& owner, const std::string& name,
                            const rpc::CallOptions& options);
  // Removes a name on this worker. The value is freed when its last fork and handle are gone. With
  // `only`, the name is removed only if the value with this id has it.
  absl::Status DropHere(const std::string& name, GlobalId only = {});
  // As DropHere, for a client that is not a worker. Errors: PERMISSION_DENIED.
  absl::Status DropFor(const rpc::Asker& asker, const std::string& name);
  Future<Unit> Drop(const std::string& owner, const std::string& name,
                    const rpc::CallOptions& options);
  Future<uint64_t> Assign(const rref::RRef& parameter, const Tensor& elements,
                          const rpc::CallOptions& options);
  Future<std::vector<ListedValue>> List(const std::string& owner, const std::string& prefix,
                                        const rpc::CallOptions& options);

  // ---- Values of this worker, for its clients that are not workers. All of these functions except
  // VersionHere fail with PERMISSION_DENIED if the caller does not have the right.

  // Lists the values whose names begin with `prefix` and come after `after`: at most `limit`, and
  // at most 1000, which also applies if `limit` is 0.
  absl::StatusOr<Listing> ListHere(const rpc::Asker& asker, const std::string& prefix,
                                   const std::string& after, size_t limit) const;
  // Returns a reference, if the caller may use it with `right`. Errors: NOT_FOUND.
  absl::StatusOr<rref::RRef> LookupHere(const rpc::Asker& asker, rpc::Right right,
                                        const std::string& name) const;
  // Reads tensors, in the order of their names. All parameters are read at one moment between two
  // steps. The version of a tensor that is not a parameter is 0. Errors: NOT_FOUND;
  // INVALID_ARGUMENT for a value that is not a tensor.
  absl::StatusOr<std::vector<store::PinnedVersion>> PinNamed(
      const rpc::Asker& asker, absl::Span<const std::string> names) const;
  // Returns the version of a parameter, or 0 for another value. Errors: those of local_entry().
  absl::StatusOr<uint64_t> VersionHere(const rref::RRef& value) const;

  // Fetches values, with one exchange per owner, and returns them in the order of `rrefs`. Large
  // parameters on devices follow in pieces. The tensors are on the `wanted` device; those of this
  // worker that are there already are not copied. Fails with the first error of an owner.
  Future<store::Values> Fetch(const std::vector<rref::RRef>& rrefs,
                              const dist_autograd::ContextPtr& context,
                              const rpc::CallOptions& options, store::WantedDevice wanted = {});
  // As Fetch, but recorded in `context` even under a NoGradGuard. For the values at which a
  // backward pass starts.
  Future<store::Values> FetchRecorded(const std::vector<rref::RRef>& rrefs,
                                      const dist_autograd::ContextPtr& context,
                                      const rpc::CallOptions& options,
                                      store::WantedDevice wanted = {});
  // As Fetch, but waits, and decodes the answers on the calling thread.
  absl::StatusOr<store::Values> FetchAndWait(const std::vector<rref::RRef>& rrefs,
                                             const dist_autograd::ContextPtr& context,
                                             const rpc::CallOptions& options,
                                             store::WantedDevice wanted = {});

  // Fetches parameters outside of any context, each with its version.
  // Errors: INVALID_ARGUMENT for a value that is not a parameter.
  Future<std::vector<store::PinnedVersion>> Pull(const std::vector<rref::RRef>& rrefs,
                                                 const rpc::CallOptions& options,
                                                 store::WantedDevice wanted = {});

 private:
  absl::Status ServeGetOrCreate(const rpc::Answer<rpc::Contents>& answer,
                                v1::GetOrCreateRequest request);
  void GetOrCreateHere(const rpc::Answer<rpc::Contents>& answer,
                       const change::CreateValue& creation);
  absl::StatusOr<rpc::Contents> ServeLookup(const rpc::CallPtr& call, v1::NameRequest request);
  absl::Status ServeDrop(const rpc::CallPtr& call, v1::NameRequest request);
  // Drops a name that `asker` may drop. Errors: as rref::UnknownName.
  absl::Status DropAllowed(const rpc::Asker& asker, const std::string& name);
  absl::Status ServeFetch(const rpc::Answer<rpc::Contents>& answer, v1::FetchRequest request);
  // The reply to a fetch.
  struct Read {
    rpc::Contents reply;
    // If it has an event, the reply may be sent only when this has passed. Otherwise it is given to
    // the caller at once.
    DeviceEvent after;
    std::function<void()> take_back;  // to be called if the reply is not sent, for such a reply
  };
  // Waits for the devices of the values.
  absl::StatusOr<Read> ReadGroup(rpc::ServerCall& call, const dist_autograd::ContextPtr& context,
                                 const store::EntryGroup& group, const v1::FetchRequest& request);
  // As ReadGroup, and answers when the reply may be sent.
  absl::Status ReadAndAnswer(const rpc::Answer<rpc::Contents>& answer,
                             const dist_autograd::ContextPtr& context,
                             const store::EntryGroup& group, const v1::FetchRequest& request);
  absl::Status ServeAssign(const rpc::Answer<v1::AssignReply>& answer,
                           rpc::Beside<v1::AssignRequest> fields);
  absl::StatusOr<v1::ListReply> ServeList(const rpc::CallPtr& call, v1::ListRequest request);

  // Where the tensors of a fetch are wanted, and the deadline of the fetch.
  struct Receiving {
    store::WantedDevice wanted;
    absl::Time deadline;  // on the worker's clock

    Device* device() const { return wanted.value_or(nullptr); }
  };
  Receiving Receive(const rpc::CallOptions& options, store::WantedDevice wanted) const;
  device_pieces::PieceCollection Pieces() const {
    return {uses_.agent, uses_.executor, uses_.clock, gate_, uses_.loans, more_pieces_};
  }
  // Returns what `decode` makes of the whole answer, for which pieces may have to be fetched.
  template <typename T, typename Decoder>
  Future<T> Received(const Future<rpc::Reply>& reply, const Receiving& receiving, Decoder decode);

  Future<store::Values> FetchFrom(const std::string& owner, const std::vector<rref::RRef>& rrefs,
                                  const dist_autograd::ContextPtr& context,
                                  const rpc::CallOptions& options, store::WantedDevice wanted);
  struct Fetching;
  absl::StatusOr<Fetching> StartFetches(const std::vector<rref::RRef>& rrefs,
                                        const dist_autograd::ContextPtr& context,
                                        const rpc::CallOptions& options,
                                        store::WantedDevice wanted);
  // Returns the values in the order in which they were asked for. Waits for answers that have not
  // come yet.
  absl::StatusOr<store::Values> Decode(const Fetching& fetching) const;
  void Discard(const Fetching& fetching);
  // Reads values of this worker, with their history if `record`, otherwise as constants.
  Future<store::Values> FetchHere(const std::vector<rref::RRef>& rrefs, bool record,
                                  const rpc::CallOptions& options, store::WantedDevice wanted);
  // Decodes an owner's whole answer to a fetch of `expected` values. Waits for `device`, unless it
  // is null.
  absl::StatusOr<store::Values> Fetched(const std::string& owner, size_t expected,
                                        const dist_autograd::ContextPtr& context,
                                        const absl::StatusOr<rpc::Reply>& reply,
                                        Device* device) const;
  Future<std::vector<store::PinnedVersion>> PullFrom(const std::string& owner,
                                                     std::vector<rref::RRef> rrefs,
                                                     const rpc::CallOptions& options,
                                                     store::WantedDevice wanted);
  // Requires: the creation of the parameter has ended.
  Future<uint64_t> SendAssign(const rref::RRef& parameter, const Tensor& elements,
                              const rpc::CallOptions& options);
  Future<rpc::Reply> StartFetch(const std::string& owner, const std::vector<rref::RRef>& rrefs,
                                const dist_autograd::ContextPtr& context, bool versions,
                                const rpc::CallOptions& options, Device* device);
  // Sends "value.fetch". Requires: the values of all `rrefs` have been made.
  Future<rpc::Reply> SendFetch(const std::string& owner, const std::vector<rref::RRef>& rrefs,
                               const dist_autograd::ContextPtr& context, bool versions,
                               const rpc::CallOptions& options, Device* device);

  const Uses uses_;
  // Both are shared with the pulls from other workers that are under way.
  const std::shared_ptr<rref::Gate> gate_ = std::make_shared<rref::Gate>();
  const std::shared_ptr<device_pieces::MorePieces> more_pieces_ =
      std::make_shared<device_pieces::MorePieces>(0);
};

}  // namespace psd::services
