#include "core/worker/exchange.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "core/base/collect.h"
#include "core/base/remedy.h"
#include "core/rref/value_codec.h"
#include "core/worker/runtime.h"

namespace psd::worker {
namespace {

// The most references to other workers' values in one message. Each costs a message to its owner.
constexpr size_t kMaxBorrowed = 4096;

using store::RemoteReference;
using store::Value;

// Describes a reference among the arguments of a call. It travels by id only, because the caller
// keeps its own fork until the answer has come. The name is left out for the owner, which knows it.
// A fork that this worker holds of its own value is not described (CreatedBody).
absl::Status DescribeArgument(Runtime& runtime, const std::string& callee,
                              const RemoteReference& reference, rref::ForkData& data) {
  const auto& body = rref::RRef::Body::Of(reference);
  data.owner = body.owner();
  data.owner_incarnation = body.owner_incarnation();
  data.value = body.value_id();
  if (!body.is_owner()) data.fork = body.fork_id();
  data.parent = runtime.name();
  data.name = data.owner == callee ? std::string() : body.name();
  return absl::OkStatus();
}

// Describes a reference in an answer. For a value of this worker a fork is counted for the caller;
// a reference to another worker's value is lent.
absl::StatusOr<rref::ForkData> AnswerFork(Runtime& runtime, rpc::ServerCall& call,
                                          const RemoteReference& reference) {
  const rref::RRef rref(
      std::static_pointer_cast<const rref::RRef::Body>(reference.shared_from_this()));
  if (rref.is_owner()) {
    PSD_ASSIGN_OR_RETURN(const store::EntryPtr entry, rref.local_entry());
    return ForkForCaller(runtime, call, entry);
  }
  PSD_ASSIGN_OR_RETURN(rref::ForkData data,
                       runtime.rrefs().Lend(rref, call.caller(), call.session_epoch()));
  call.OnAnswerDropped([&runtime, data, caller = call.caller(), epoch = call.session_epoch()] {
    runtime.rrefs().TakeBack(data, caller, epoch);
  });
  return data;
}

void CollectReferencesOf(const Value& value, std::vector<rref::RRef>& found) {
  if (value.As<std::shared_ptr<const RemoteReference>>() != nullptr) {
    rref::RRef rref = rref::RRef::FromValue(value);
    if (rref.valid()) found.push_back(std::move(rref));
  } else if (const Value::List* items = value.AsList()) {
    for (const Value& item : *items) CollectReferencesOf(item, found);
  } else if (const Value::Map* items = value.AsMap()) {
    for (const auto& [key, item] : *items) CollectReferencesOf(item, found);
  }
}

}  // namespace

std::vector<rref::RRef> CollectReferences(const Values& values) {
  std::vector<rref::RRef> found;
  found.reserve(values.size());
  for (const Value& value : values) CollectReferencesOf(value, found);
  return found;
}

namespace {

// Waits until ready(rref) is ready for each of `rrefs` whose value is not made. Returns the rest of
// `options`.
template <typename Ready>
Future<rpc::CallOptions> WhenReady(Runtime& runtime, const std::vector<rref::RRef>& rrefs,
                                   const rpc::CallOptions& options, const Ready& ready) {
  using Result = Future<rpc::CallOptions>;
  absl::Status usable = runtime.rrefs().CheckUsable(rrefs);
  if (!usable.ok()) return Result::Ready(usable);
  std::vector<Future<Unit>> pending;
  for (const rref::RRef& rref : rrefs) {
    if (rref.is_made()) continue;
    Future<Unit> future = ready(rref);
    if (!future.IsReady()) {
      pending.push_back(std::move(future));
    } else if (!future.Wait().ok()) {
      return Result::Ready(future.Wait().status());
    }
  }
  if (pending.empty()) return Result::Ready(options);
  const Clock& clock = *runtime.options().clock;
  const absl::Time begun = clock.Now();
  const bool bounded = options.timeout > absl::ZeroDuration();
  Promise<rpc::CallOptions> promise;
  TimerQueue::Id timer = 0;
  if (bounded) {
    timer = runtime.timers().RunAfter(options.timeout, [promise, timeout = options.timeout] {
      promise.Set(absl::DeadlineExceededError(
          absl::StrCat("the creation of a reference that the call uses did not end within ",
                       absl::FormatDuration(timeout))));
    });
  }
  CollectAll(pending).OnReady([&runtime, &clock, promise, options, begun, bounded,
                               timer](const absl::StatusOr<std::vector<Unit>>& created) {
    if (bounded) runtime.timers().Cancel(timer);
    if (!created.ok()) return static_cast<void>(promise.Set(created.status()));
    rpc::CallOptions left = options;
    if (bounded) {
      left.timeout = std::max(options.timeout - (clock.Now() - begun), absl::Microseconds(1));
    }
    promise.Set(left);
  });
  return promise.future();
}

}  // namespace

Future<rpc::CallOptions> WhenMade(Runtime& runtime, const std::vector<rref::RRef>& rrefs,
                                  const rpc::CallOptions& options) {
  return WhenReady(runtime, rrefs, options,
                   [](const rref::RRef& rref) { return rref.body()->made(); });
}

Future<rpc::CallOptions> WhenPassable(Runtime& runtime, const std::vector<rref::RRef>& rrefs,
                                      const rpc::CallOptions& options) {
  return WhenReady(runtime, rrefs, options,
                   [&](const rref::RRef& rref) { return runtime.rrefs().Passable(rref); });
}

bool AllMade(const std::vector<rref::RRef>& rrefs) {
  return std::all_of(rrefs.begin(), rrefs.end(),
                     [](const rref::RRef& rref) { return rref.valid() && rref.is_made(); });
}

Future<rpc::CallOptions> WhenAnswerable(Runtime& runtime, const std::string& caller,
                                        const std::vector<rref::RRef>& rrefs,
                                        const rpc::CallOptions& options) {
  return WhenReady(runtime, rrefs, options, [&](const rref::RRef& rref) {
    const bool needs_value = rref.is_owner() || rref.owner() == caller;
    return needs_value ? rref.body()->made() : runtime.rrefs().Passable(rref);
  });
}

absl::StatusOr<rref::ForkData> ForkForCaller(Runtime& runtime, rpc::ServerCall& call,
                                             const store::EntryPtr& entry) {
  PSD_ASSIGN_OR_RETURN(const rref::ForkData data,
                       runtime.rrefs().ForkFor(entry, call.caller(), call.session_epoch()));
  call.OnAnswerDropped([&runtime, data, caller = call.caller(), epoch = call.session_epoch()] {
    runtime.rrefs().DropFork(data, caller, epoch);
  });
  return data;
}

ContextPtr RecordingContext(const ContextPtr& context) {
  return GradEnabled() ? context : nullptr;
}

absl::StatusOr<rpc::Request> EncodeRequest(Runtime& runtime, std::string method,
                                           const std::string& callee, const Values& values,
                                           const ContextPtr& context) {
  rpc::Request request;
  request.method = std::move(method);
  request.session_bound = context != nullptr;
  PSD_ASSIGN_OR_RETURN(request.payload,
                       rref::EncodeValues(values, [&](const auto& reference, auto& data) {
                         request.session_bound = true;
                         return DescribeArgument(runtime, callee, reference, data);
                       }));
  if (context == nullptr) return request;
  PSD_ASSIGN_OR_RETURN(
      rpc::Attachment attachment,
      runtime.autograd().WrapRequest(context, callee, rref::CollectVariables(values)));
  request.attachments.push_back(std::move(attachment));
  return request;
}

absl::StatusOr<Values> DecodeReply(Runtime& runtime, const ContextPtr& context,
                                   const rpc::Reply& reply) {
  return rref::DecodeValues(
      reply.payload,
      [&](std::vector<Tensor> tensors) {
        return runtime.autograd().UnwrapReply(context, reply, std::move(tensors));
      },
      [&](const rref::ForkRun& run) -> absl::StatusOr<Values> {
        Values adopted;
        for (const rref::ForkRun::Fork& fork : run.forks) {
          PSD_ASSIGN_OR_RETURN(rref::RRef rref,
                               runtime.rrefs().AdoptFork(run.DataOf(fork), reply.epoch));
          adopted.emplace_back(rref);
        }
        return adopted;
      });
}

namespace {

absl::StatusOr<Values> BorrowAll(Runtime& runtime, const rref::ForkRun& run, ReferenceUse use,
                                 std::vector<Future<Unit>>& borrowed) {
  if (run.owner != runtime.name() && borrowed.size() + run.forks.size() > kMaxBorrowed) {
    return WithRemedy(
        absl::InvalidArgumentError(absl::StrCat("a call with more than ", kMaxBorrowed,
                                                " references to values of other workers")),
        "pass fewer at once");
  }
  rref::RRefContext& context = runtime.rrefs();
  PSD_ASSIGN_OR_RETURN(const std::vector<rref::RRef> rrefs, use == ReferenceUse::kRead
                                                                ? context.BorrowUncounted(run)
                                                                : context.Borrow(run));
  Values references;
  references.reserve(rrefs.size());
  for (const rref::RRef& rref : rrefs) {
    if (!rref.is_owner()) borrowed.push_back(rref.body()->confirmed());
    references.emplace_back(rref);
  }
  return references;
}

}  // namespace

absl::StatusOr<Arguments> DecodeRequest(Runtime& runtime, rpc::ServerCall& call, ReferenceUse use) {
  Arguments arguments;
  PSD_ASSIGN_OR_RETURN(
      arguments.values,
      rref::DecodeValues(
          call.payload(),
          [&](std::vector<Tensor> tensors) -> absl::StatusOr<std::vector<Variable>> {
            PSD_ASSIGN_OR_RETURN(auto received,
                                 runtime.autograd().UnwrapRequest(call, std::move(tensors)));
            arguments.context = std::move(received.context);
            return std::move(received.variables);
          },
          [&](const rref::ForkRun& run) {
            return BorrowAll(runtime, run, use, arguments.borrowed);
          }));
  return arguments;
}

void ReplyWithValues(Runtime& runtime, rpc::ServerCall& call, const ContextPtr& context,
                     const absl::StatusOr<Values>& result) {
  if (!result.ok()) return call.Reply(result.status());
  auto payload = rref::EncodeValues(*result, [&](const auto& reference, auto& data) {
    auto fork = AnswerFork(runtime, call, reference);
    if (fork.ok()) data = *std::move(fork);
    return fork.status();
  });
  absl::StatusOr<std::vector<rpc::Attachment>> attachments = std::vector<rpc::Attachment>();
  if (payload.ok() && context != nullptr) {
    attachments = runtime.autograd().WrapReply(context, rref::CollectVariables(*result));
  }
  if (!attachments.ok()) return call.Reply(attachments.status());
  call.Reply(std::move(payload), *std::move(attachments));
}

}  // namespace psd::worker
