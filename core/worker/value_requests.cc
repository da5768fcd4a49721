// The asker's end.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/mutex.h"
#include "core/program/program_codec.h"
#include "core/worker/runtime.h"
#include "core/worker/value_service.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::worker {

using rref::RRef;
using store::EntryPtr;
using store::Value;

absl::StatusOr<RRef> AdoptReference(Runtime& runtime, const std::string& owner,
                                    const rpc::Reply& reply) {
  PSD_ASSIGN_OR_RETURN(auto message,
                       ParseMessage<v1::ReferenceReply>(reply.payload.header, "a reference"));
  rref::ForkData data;
  data.owner = owner;
  data.owner_incarnation = reply.callee.incarnation;
  data.value = {message.value_incarnation(), message.value_counter()};
  data.fork = {message.fork_incarnation(), message.fork_counter()};
  data.parent = owner;
  data.name = message.name();
  return runtime.rrefs().AdoptFork(data);
}

Future<RRef> ValueService::GetOrCreate(const std::string& owner, const std::string& name,
                                       const program::Program& create, bool requires_grad,
                                       const rpc::CallOptions& options, Hosted hosted) {
  v1::GetOrCreateRequest request;
  request.set_name(name);
  request.set_program(program::EncodeProgram(create));
  request.set_requires_grad(requires_grad);
  request.set_rows(hosted == Hosted::kRows);
  return runtime_.agent()
      .StartCall(owner, PlainRequest("value.get_or_create", request), options)
      .reply()
      .Then([this, owner](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<RRef> {
        if (!reply.ok()) return reply.status();
        return AdoptReference(runtime_, owner, *reply);
      });
}

Future<RRef> ValueService::Lookup(const std::string& owner, const std::string& name,
                                  const rpc::CallOptions& options) {
  v1::NameRequest request;
  request.set_name(name);
  return runtime_.agent()
      .StartCall(owner, PlainRequest("value.lookup", request), options)
      .reply()
      .Then([this, owner](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<RRef> {
        if (!reply.ok()) return reply.status();
        return AdoptReference(runtime_, owner, *reply);
      });
}

Future<Unit> ValueService::Drop(const std::string& owner, const std::string& name,
                                const rpc::CallOptions& options) {
  v1::NameRequest request;
  request.set_name(name);
  return runtime_.agent()
      .StartCall(owner, PlainRequest("value.drop", request), options)
      .reply()
      .Then([](const absl::StatusOr<rpc::Reply>& reply) { return reply.status(); });
}

Future<uint64_t> ValueService::Assign(const RRef& parameter, const Tensor& elements,
                                      const rpc::CallOptions& options) {
  absl::Status usable = runtime_.rrefs().CheckUsable(parameter);
  if (!usable.ok()) return Future<uint64_t>::Ready(usable);
  auto request =
      EncodeRequest(runtime_, "value.assign", parameter.owner(), {Value(elements)}, nullptr);
  if (!request.ok()) return Future<uint64_t>::Ready(request.status());
  v1::AssignRequest fields;
  fields.set_incarnation(parameter.value_id().incarnation);
  fields.set_counter(parameter.value_id().counter);
  request->attachments.push_back(FieldsAttachment(fields));
  request->only_incarnation = parameter.body()->owner_incarnation();
  return runtime_.agent()
      .StartCall(parameter.owner(), *std::move(request), options)
      .reply()
      .Then([parameter](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<uint64_t> {
        if (!reply.ok()) return reply.status();
        PSD_ASSIGN_OR_RETURN(auto message,
                             ParseMessage<v1::AssignReply>(reply->payload.header, "value.assign"));
        return message.version();
      });
}

Future<std::vector<ListedValue>> ValueService::List(const std::string& owner,
                                                    const std::string& prefix,
                                                    const rpc::CallOptions& options) {
  Promise<std::vector<ListedValue>> promise;
  auto listed = std::make_shared<std::vector<ListedValue>>();
  // Asks page by page; each answer asks for the next.
  auto ask = std::make_shared<std::function<void(std::string)>>();
  std::weak_ptr<std::function<void(std::string)>> again = ask;
  *ask = [this, owner, prefix, options, promise, listed, again](std::string after) {
    v1::ListRequest request;
    request.set_prefix(prefix);
    request.set_after(after);
    auto self = again.lock();
    runtime_.agent()
        .StartCall(owner, PlainRequest("value.list", request), options)
        .reply()
        .OnReady([promise, listed, self](const absl::StatusOr<rpc::Reply>& reply) {
          if (!reply.ok()) return static_cast<void>(promise.Set(reply.status()));
          auto page = ParseMessage<v1::ListReply>(reply->payload.header, "value.list");
          if (!page.ok()) return static_cast<void>(promise.Set(page.status()));
          int size = std::min(
              {page->names_size(), page->kinds_size(), page->versions_size(), page->bytes_size()});
          for (int i = 0; i < size; ++i) {
            listed->push_back({page->names(i), page->kinds(i), page->versions(i), page->bytes(i)});
          }
          if (page->more() && size > 0) return (*self)(listed->back().name);
          promise.Set(std::move(*listed));
        });
  };
  (*ask)("");
  return promise.future();
}

Future<Values> ValueService::Fetch(const std::vector<RRef>& rrefs, const ContextPtr& context,
                                   const rpc::CallOptions& options) {
  // By owner, in order of first appearance.
  std::vector<std::string> owners;
  std::map<std::string, std::vector<size_t>> places;
  for (size_t i = 0; i < rrefs.size(); ++i) {
    if (!rrefs[i].valid()) {
      return Future<Values>::Ready(absl::InvalidArgumentError(
          absl::StrCat("RRef ", i, " of ", rrefs.size(), " refers to nothing")));
    }
    std::vector<size_t>& indices = places[rrefs[i].owner()];
    if (indices.empty()) {
      owners.push_back(rrefs[i].owner());
      indices.reserve(rrefs.size());
    }
    indices.push_back(i);
  }
  if (owners.empty()) return Future<Values>::Ready(Values{});

  struct Gather {
    Mutex mutex;
    Values values PSD_GUARDED_BY(mutex);
    size_t missing PSD_GUARDED_BY(mutex) = 0;
  };
  auto gather = std::make_shared<Gather>();
  {
    MutexLock lock(gather->mutex);
    gather->values.resize(rrefs.size());
    gather->missing = owners.size();
  }
  Promise<Values> promise;
  for (const std::string& owner : owners) {
    const std::vector<size_t>& indices = places[owner];
    std::vector<RRef> mine;
    mine.reserve(indices.size());
    for (size_t index : indices) mine.push_back(rrefs[index]);
    FetchFrom(owner, std::move(mine), context, options)
        .OnReady([gather, promise, indices](const absl::StatusOr<Values>& fetched) {
          if (!fetched.ok()) return static_cast<void>(promise.Set(fetched.status()));
          Values all;
          {
            MutexLock lock(gather->mutex);
            for (size_t i = 0; i < indices.size(); ++i) gather->values[indices[i]] = (*fetched)[i];
            if (--gather->missing > 0) return;
            all = std::move(gather->values);
          }
          promise.Set(std::move(all));
        });
  }
  return promise.future();
}

Future<Values> ValueService::FetchFrom(const std::string& owner, std::vector<RRef> rrefs,
                                       const ContextPtr& context, const rpc::CallOptions& options) {
  using Result = Future<Values>;
  if (owner == runtime_.name()) {
    std::vector<EntryPtr> entries;
    for (const RRef& rref : rrefs) entries.push_back(rref.local_entry());
    return Result::Ready(store::Entry::ReadAll(entries));
  }
  // A use that overtakes a creation waits for it, without a thread.
  for (const RRef& rref : rrefs) {
    if (rref.body()->confirmed().IsReady()) continue;
    Promise<Values> promise;
    Future<Unit> confirmed = rref.body()->confirmed();
    confirmed.OnReady([this, owner, rrefs = std::move(rrefs), context, options,
                       promise](const absl::StatusOr<Unit>& created) mutable {
      if (!created.ok()) return static_cast<void>(promise.Set(created.status()));
      FetchFrom(owner, std::move(rrefs), context, options)
          .OnReady([promise](const absl::StatusOr<Values>& values) { promise.Set(values); });
    });
    return promise.future();
  }
  absl::Status usable = runtime_.rrefs().CheckUsable(rrefs);
  if (!usable.ok()) return Result::Ready(usable);
  v1::FetchRequest message;
  message.mutable_incarnations()->Reserve(static_cast<int>(rrefs.size()));
  message.mutable_counters()->Reserve(static_cast<int>(rrefs.size()));
  for (const RRef& rref : rrefs) {
    message.add_incarnations(rref.value_id().incarnation);
    message.add_counters(rref.value_id().counter);
  }
  rpc::Request request = PlainRequest("value.fetch", message);
  request.only_incarnation = rrefs[0].body()->owner_incarnation();
  request.session_bound = true;
  if (context != nullptr) {
    auto attachment = runtime_.autograd().WrapRequest(context, owner, {});
    if (!attachment.ok()) return Result::Ready(attachment.status());
    request.attachments.push_back(*std::move(attachment));
  }
  size_t expected = rrefs.size();
  return runtime_.agent()
      .StartCall(owner, std::move(request), options)
      .reply()
      .Then([this, context, owner, expected, rrefs = std::move(rrefs)](
                const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<Values> {
        if (!reply.ok()) return reply.status();
        PSD_ASSIGN_OR_RETURN(Values values, DecodeReply(runtime_, context, *reply));
        if (values.size() != expected) {
          return absl::InternalError(
              absl::StrCat(owner, " was asked for ", expected, " values and sent ", values.size()));
        }
        return values;
      });
}

Future<Value> ValueService::FetchGradient(GlobalId context, const RRef& leaf,
                                          const rpc::CallOptions& options) {
  absl::Status usable = runtime_.rrefs().CheckUsable(leaf);
  if (!usable.ok()) return Future<Value>::Ready(usable);
  v1::GradientRequest message;
  message.set_context_incarnation(context.incarnation);
  message.set_context_counter(context.counter);
  message.set_leaf_incarnation(leaf.value_id().incarnation);
  message.set_leaf_counter(leaf.value_id().counter);
  rpc::Request request = PlainRequest("gradient.fetch", message);
  request.only_incarnation = leaf.body()->owner_incarnation();
  request.session_bound = true;
  return runtime_.agent()
      .StartCall(leaf.owner(), std::move(request), options)
      .reply()
      .Then([this, leaf](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<Value> {
        if (!reply.ok()) return reply.status();
        PSD_ASSIGN_OR_RETURN(Values values, DecodeReply(runtime_, nullptr, *reply));
        if (values.size() != 1 ||
            (values[0].As<Variable>() == nullptr && values[0].AsSparse() == nullptr)) {
          return absl::InternalError(absl::StrCat(leaf.owner(), " answered no gradient"));
        }
        return values[0];
      });
}

}  // namespace psd::worker
