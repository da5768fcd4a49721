// Client side of the value service: creates, looks up, fetches, assigns, drops and lists values on
// other workers.
#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/collect.h"
#include "core/base/mutex.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/exchange.h"
#include "core/program/program_codec.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/message_io.h"
#include "core/rref/creation_gate.h"
#include "core/rref/value_codec.h"
#include "core/services/values/value_methods.h"
#include "core/services/values/value_service.h"
#include "core/store/parameter.h"
#include "core/store/value.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {

using rref::RRef;
using store::EntryPtr;
using store::PinnedVersion;
using store::Value;

// The part of a request that goes to one owner: some of the RRefs, by their indices.
struct ValueService::OwnerPart {
  std::string owner;
  std::vector<size_t> places;

  std::vector<RRef> Of(const std::vector<RRef>& rrefs) const {
    std::vector<RRef> mine;
    mine.reserve(places.size());
    for (size_t place : places) mine.push_back(rrefs[place]);
    return mine;
  }
};

// Groups `rrefs` by owner. The owners are in the order of their first RRef.
absl::StatusOr<std::vector<ValueService::OwnerPart>> ValueService::PartsByOwner(
    const std::vector<RRef>& rrefs) {
  std::vector<OwnerPart> parts;
  std::map<std::string, size_t> numbers;  // indices in `parts`
  OwnerPart* part = nullptr;              // that of the RRef before, mostly also the next one's
  for (size_t i = 0; i < rrefs.size(); ++i) {
    if (!rrefs[i].valid()) {
      return absl::InvalidArgumentError(
          absl::StrCat("RRef ", i, " of ", rrefs.size(), " refers to nothing"));
    }
    const std::string& owner = rrefs[i].owner();
    if (part == nullptr || part->owner != owner) {
      const auto [it, added] = numbers.try_emplace(owner, parts.size());
      if (added) parts.push_back({owner, {}});
      part = &parts[it->second];
      part->places.reserve(rrefs.size());
    }
    part->places.push_back(i);
  }
  return parts;
}

// Asks all owners at the same time, each once, by ask(owner, its RRefs). Returns the answers in the
// order of `rrefs`, or the first error.
template <typename T, typename Ask>
Future<std::vector<T>> ValueService::AskOwners(const std::vector<RRef>& rrefs, const Ask& ask) {
  using Result = std::vector<T>;
  absl::StatusOr<std::vector<OwnerPart>> parts = PartsByOwner(rrefs);
  if (!parts.ok()) return Future<Result>::Ready(parts.status());
  if (parts->empty()) return Future<Result>::Ready(Result{});
  if (parts->size() == 1) return ask(parts->front().owner, rrefs);

  struct Gather {
    Mutex mutex;  // leaf
    Result answers PSD_GUARDED_BY(mutex);
    size_t missing PSD_GUARDED_BY(mutex) = 0;
  };
  auto gather = std::make_shared<Gather>();
  {
    MutexLock lock(gather->mutex);
    gather->answers.resize(rrefs.size());
    gather->missing = parts->size();
  }
  Promise<Result> promise;
  for (const OwnerPart& part : *parts) {
    ask(part.owner, part.Of(rrefs))
        .OnReady([gather, promise, places = part.places](const absl::StatusOr<Result>& answer) {
          if (!answer.ok()) return static_cast<void>(promise.Set(answer.status()));
          Result all;
          {
            MutexLock lock(gather->mutex);
            for (size_t i = 0; i < places.size(); ++i) gather->answers[places[i]] = (*answer)[i];
            if (--gather->missing > 0) return;
            all = std::move(gather->answers);
          }
          promise.Set(std::move(all));
        });
  }
  return promise.future();
}

namespace {

// Returns the entries of this worker's own values.
absl::StatusOr<std::vector<EntryPtr>> Here(const std::vector<RRef>& rrefs) {
  std::vector<EntryPtr> entries;
  entries.reserve(rrefs.size());
  for (const RRef& rref : rrefs) {
    PSD_ASSIGN_OR_RETURN(EntryPtr entry, rref.local_entry());
    entries.push_back(std::move(entry));
  }
  return entries;
}

// Returns the value without history: no tensor in it, also in lists and maps, requires grad.
Value Detached(const Value& value) {
  if (const auto* variable = value.As<Variable>()) return Value(variable->Detach());
  if (const Value::List* list = value.AsList()) {
    Value::List items;
    items.reserve(list->size());
    for (const Value& item : *list) items.push_back(Detached(item));
    return Value::OfList(std::move(items));
  }
  if (const Value::Map* map = value.AsMap()) {
    Value::Map items;
    items.reserve(map->size());
    for (const auto& [key, item] : *map) items.emplace_back(key, Detached(item));
    return Value::OfMap(std::move(items));
  }
  return value;
}

absl::StatusOr<store::Values> ReadHere(const std::vector<RRef>& rrefs, bool record) {
  PSD_ASSIGN_OR_RETURN(const std::vector<EntryPtr> entries, Here(rrefs));
  PSD_ASSIGN_OR_RETURN(store::Values values, store::Entry::ReadAll(entries));
  if (!record)
    for (Value& value : values) value = Detached(value);
  return values;
}

absl::StatusOr<std::vector<PinnedVersion>> PinHere(const std::vector<RRef>& rrefs) {
  PSD_ASSIGN_OR_RETURN(const std::vector<EntryPtr> entries, Here(rrefs));
  std::vector<store::Parameter*> parameters;
  for (const EntryPtr& entry : entries) {
    if (entry->parameter == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(entry->Label(), " is ", entry->KindName(), ", not a parameter"));
    }
    parameters.push_back(entry->parameter.get());
  }
  return store::Parameter::PinAll(parameters);
}

absl::Status NotAsAsked(const std::string& owner, size_t expected, size_t got) {
  return absl::InternalError(
      absl::StrCat(owner, " was asked for ", expected, " values and sent ", got));
}

// Waits until all answers have come, or until the first error. `here` and some of `replies` may be
// invalid futures.
absl::Status WaitForAll(const std::vector<Future<rpc::Reply>>& replies,
                        const Future<store::Values>& here) {
  const auto outcome = [](const auto& answer) { return answer.status(); };
  std::vector<Future<Unit>> all;
  for (const Future<rpc::Reply>& reply : replies)
    if (reply.valid()) all.push_back(reply.Then(outcome));
  if (here.valid()) all.push_back(here.Then(outcome));
  return WaitAll(all).status();
}

}  // namespace

Future<RRef> ValueService::GetOrCreate(const std::string& owner, const std::string& name,
                                       const program::Program& create, bool requires_grad,
                                       const rpc::CallOptions& options, Hosted hosted) {
  v1::GetOrCreateRequest request;
  request.set_name(name);
  request.set_program(program::EncodeProgram(create));
  request.set_requires_grad(requires_grad);
  request.set_rows(hosted == Hosted::kRows);
  return rpc::Ask(uses_.agent, kValueGetOrCreate, {owner}, request, options)
      .Then([this, owner](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<RRef> {
        if (!reply.ok()) return reply.status();
        return uses_.exchange.AdoptReference(owner, *reply);
      });
}

Future<RRef> ValueService::Lookup(const std::string& owner, const std::string& name,
                                  const rpc::CallOptions& options) {
  v1::NameRequest request;
  request.set_name(name);
  return rpc::Ask(uses_.agent, kValueLookup, {owner}, request, options)
      .Then([this, owner](const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<RRef> {
        if (!reply.ok()) return reply.status();
        return uses_.exchange.AdoptReference(owner, *reply);
      });
}

Future<Unit> ValueService::Drop(const std::string& owner, const std::string& name,
                                const rpc::CallOptions& options) {
  v1::NameRequest request;
  request.set_name(name);
  return rpc::Ask(uses_.agent, kValueDrop, {owner}, request, options);
}

Future<uint64_t> ValueService::Assign(const RRef& parameter, const Tensor& elements,
                                      const rpc::CallOptions& options) {
  return uses_.creations.After<uint64_t>({parameter}, options,
                                         [this, parameter, elements](const rpc::CallOptions& left) {
                                           return SendAssign(parameter, elements, left);
                                         });
}

Future<uint64_t> ValueService::SendAssign(const RRef& parameter, const Tensor& elements,
                                          const rpc::CallOptions& options) {
  absl::Status usable = uses_.rrefs.CheckUsable(parameter);
  if (!usable.ok()) return Future<uint64_t>::Ready(usable);
  auto request = uses_.exchange.EncodeRequest(kValueAssign.info.name, parameter.owner(),
                                              {Value(elements)}, nullptr);
  if (!request.ok()) return Future<uint64_t>::Ready(request.status());
  v1::AssignRequest fields;
  fields.set_incarnation(parameter.value_id().incarnation);
  fields.set_counter(parameter.value_id().counter);
  request->attachments.push_back(rpc::FieldsAttachment(fields));
  return rpc::Ask(uses_.agent, kValueAssign,
                  {parameter.owner(), parameter.body()->owner_incarnation()}, *std::move(request),
                  options)
      .Then([parameter](const absl::StatusOr<v1::AssignReply>& reply) -> absl::StatusOr<uint64_t> {
        if (!reply.ok()) return reply.status();
        return reply->version();
      });
}

Future<std::vector<ListedValue>> ValueService::List(const std::string& owner,
                                                    const std::string& prefix,
                                                    const rpc::CallOptions& options) {
  Promise<std::vector<ListedValue>> promise;
  auto listed = std::make_shared<std::vector<ListedValue>>();
  // The list is fetched page by page; the answer for each page requests the next one.
  auto ask = std::make_shared<std::function<void(std::string)>>();
  std::weak_ptr<std::function<void(std::string)>> again = ask;
  *ask = [this, owner, prefix, options, promise, listed, again](std::string after) {
    v1::ListRequest request;
    request.set_prefix(prefix);
    request.set_after(after);
    auto self = again.lock();
    rpc::Ask(uses_.agent, kValueList, {owner}, request, options)
        .OnReady([promise, listed, self](const absl::StatusOr<v1::ListReply>& page) {
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

Future<store::Values> ValueService::Fetch(const std::vector<RRef>& rrefs,
                                          const dist_autograd::ContextPtr& context,
                                          const rpc::CallOptions& options) {
  return FetchRecorded(rrefs, dist_autograd::RecordingContext(context), options);
}

Future<store::Values> ValueService::FetchRecorded(const std::vector<RRef>& rrefs,
                                                  const dist_autograd::ContextPtr& context,
                                                  const rpc::CallOptions& options) {
  return AskOwners<Value>(rrefs,
                          [&](const std::string& owner, std::vector<RRef> mine) {
                            return FetchFrom(owner, std::move(mine), context, options);
                          })
      .On(uses_.continuations);
}

absl::StatusOr<store::Values> ValueService::FetchAndWait(const std::vector<RRef>& rrefs,
                                                         const dist_autograd::ContextPtr& context,
                                                         const rpc::CallOptions& options) {
  PSD_ASSIGN_OR_RETURN(const std::vector<OwnerPart> parts, PartsByOwner(rrefs));
  const dist_autograd::ContextPtr recording = dist_autograd::RecordingContext(context);
  std::vector<Future<rpc::Reply>> replies(parts.size());
  Future<store::Values> here;
  for (size_t i = 0; i < parts.size(); ++i) {
    std::vector<RRef> some;
    if (parts.size() > 1) some = parts[i].Of(rrefs);
    const std::vector<RRef>& mine = parts.size() > 1 ? some : rrefs;
    if (parts[i].owner == uses_.agent.self().name) {
      here = FetchHere(mine, recording != nullptr, options);
    } else {
      replies[i] = StartFetch(parts[i].owner, mine, recording, /*versions=*/false, options);
    }
  }
  if (parts.size() > 1) {
    absl::Status status = WaitForAll(replies, here);
    if (!status.ok()) {
      Discard(parts, replies);
      return status;
    }
  }
  store::Values all(parts.size() == 1 ? 0 : rrefs.size());
  absl::Status status;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [owner, places] = parts[i];
    absl::StatusOr<store::Values> mine =
        replies[i].valid() ? Fetched(owner, places.size(), recording, replies[i].Wait())
                           : here.Wait();
    if (parts.size() == 1) return mine;
    status.Update(mine.status());
    if (!mine.ok()) continue;  // the other answers must still be decoded, see Discard
    for (size_t j = 0; j < places.size(); ++j) all[places[j]] = std::move((*mine)[j]);
  }
  PSD_RETURN_IF_ERROR(status);
  return all;
}

// The owner has counted the references in its answer for this worker. So every answer is decoded,
// even if another one failed, and its references are released.
void ValueService::Discard(const std::vector<OwnerPart>& parts,
                           const std::vector<Future<rpc::Reply>>& replies) {
  for (size_t i = 0; i < parts.size(); ++i) {
    if (!replies[i].valid()) continue;
    replies[i].OnReady([this, owner = parts[i].owner, expected = parts[i].places.size()](
                           const absl::StatusOr<rpc::Reply>& reply) {
      Fetched(owner, expected, nullptr, reply).IgnoreError();
    });
  }
}

Future<store::Values> ValueService::FetchFrom(const std::string& owner, std::vector<RRef> rrefs,
                                              const dist_autograd::ContextPtr& context,
                                              const rpc::CallOptions& options) {
  if (owner == uses_.agent.self().name) return FetchHere(rrefs, context != nullptr, options);
  return StartFetch(owner, rrefs, context, /*versions=*/false, options)
      .Then([this, context, owner, rrefs = std::move(rrefs)](
                const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<store::Values> {
        return Fetched(owner, rrefs.size(), context, reply);
      });
}

Future<store::Values> ValueService::FetchHere(const std::vector<RRef>& rrefs, bool record,
                                              const rpc::CallOptions& options) {
  absl::Status usable = uses_.rrefs.CheckUsable(rrefs);
  if (!usable.ok()) return Future<store::Values>::Ready(usable);
  return uses_.creations.After<store::Values>(
      rrefs, options, [rrefs, record](const rpc::CallOptions&) {
        return Future<store::Values>::Ready(ReadHere(rrefs, record));
      });
}

absl::StatusOr<store::Values> ValueService::Fetched(const std::string& owner, size_t expected,
                                                    const dist_autograd::ContextPtr& context,
                                                    const absl::StatusOr<rpc::Reply>& reply) const {
  PSD_RETURN_IF_ERROR(reply.status());
  PSD_ASSIGN_OR_RETURN(store::Values values, uses_.exchange.DecodeReply(context, *reply));
  if (values.size() != expected) return NotAsAsked(owner, expected, values.size());
  return values;
}

Future<std::vector<PinnedVersion>> ValueService::Pull(const std::vector<RRef>& rrefs,
                                                      const rpc::CallOptions& options) {
  return AskOwners<PinnedVersion>(rrefs, [&](const std::string& owner, std::vector<RRef> mine) {
    return PullFrom(owner, std::move(mine), options);
  });
}

Future<std::vector<PinnedVersion>> ValueService::PullFrom(const std::string& owner,
                                                          std::vector<RRef> rrefs,
                                                          const rpc::CallOptions& options) {
  using Result = absl::StatusOr<std::vector<PinnedVersion>>;
  if (owner == uses_.agent.self().name) {
    return uses_.creations.After<std::vector<PinnedVersion>>(
        rrefs, options, [rrefs](const rpc::CallOptions&) {
          return Future<std::vector<PinnedVersion>>::Ready(PinHere(rrefs));
        });
  }
  return StartFetch(owner, rrefs, nullptr, /*versions=*/true, options)
      .Then([owner, rrefs = std::move(rrefs)](const absl::StatusOr<rpc::Reply>& reply) -> Result {
        if (!reply.ok()) return reply.status();
        PSD_ASSIGN_OR_RETURN(auto fetched,
                             rpc::ParseFields<v1::FetchedVersions>(*reply, kValueFetch.info.name));
        PSD_ASSIGN_OR_RETURN(Tensors tensors, rref::DecodeTensorValues(reply->payload));
        const auto told = static_cast<size_t>(fetched.versions_size());
        if (tensors.size() != rrefs.size()) {
          return NotAsAsked(owner, rrefs.size(), tensors.size());
        }
        if (told != tensors.size()) return NotAsAsked(owner, rrefs.size(), told);
        std::vector<PinnedVersion> pulled;
        for (size_t i = 0; i < told; ++i) {
          pulled.push_back({std::move(tensors[i]), fetched.versions(static_cast<int>(i))});
        }
        return pulled;
      });
}

Future<rpc::Reply> ValueService::StartFetch(const std::string& owner,
                                            const std::vector<RRef>& rrefs,
                                            const dist_autograd::ContextPtr& context, bool versions,
                                            const rpc::CallOptions& options) {
  if (rref::AllMade(rrefs)) return SendFetch(owner, rrefs, context, versions, options);
  return uses_.creations.After<rpc::Reply>(
      rrefs, options, [this, owner, rrefs, context, versions](const rpc::CallOptions& left) {
        return SendFetch(owner, rrefs, context, versions, left);
      });
}

Future<rpc::Reply> ValueService::SendFetch(const std::string& owner, const std::vector<RRef>& rrefs,
                                           const dist_autograd::ContextPtr& context, bool versions,
                                           const rpc::CallOptions& options) {
  using Result = Future<rpc::Reply>;
  absl::Status usable = uses_.rrefs.CheckUsable(rrefs);
  if (!usable.ok()) return Result::Ready(usable);
  v1::FetchRequest message;
  message.set_versions(versions);
  message.mutable_incarnations()->Reserve(static_cast<int>(rrefs.size()));
  message.mutable_counters()->Reserve(static_cast<int>(rrefs.size()));
  for (const RRef& rref : rrefs) {
    message.add_incarnations(rref.value_id().incarnation);
    message.add_counters(rref.value_id().counter);
  }
  rpc::Request request;
  request.payload = rpc::PlainPayload(message);
  if (context != nullptr) {
    auto attachment = uses_.autograd.WrapRequest(context, owner, {});
    if (!attachment.ok()) return Result::Ready(attachment.status());
    request.attachments.push_back(*std::move(attachment));
  }
  return rpc::Ask(uses_.agent, kValueFetch,
                  {owner, rrefs[0].body()->owner_incarnation(), /*session_bound=*/true},
                  std::move(request), options);
}

}  // namespace psd::services
