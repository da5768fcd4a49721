// Client side of the value service: creates, looks up, fetches, assigns, drops and lists values on
// other workers.
#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "core/base/collect.h"
#include "core/dist_autograd/context.h"
#include "core/dist_autograd/exchange.h"
#include "core/program/program_codec.h"
#include "core/rpc/declared_method.h"
#include "core/rpc/message_io.h"
#include "core/rref/by_owner.h"
#include "core/rref/creation_gate.h"
#include "core/rref/value_codec.h"
#include "core/services/values/value_methods.h"
#include "core/services/values/value_service.h"
#include "core/store/on_device.h"
#include "core/store/parameter.h"
#include "core/store/value.h"
#include "proto/psd/v1/worker.pb.h"

namespace psd::services {

using rref::RRef;
using store::EntryPtr;
using store::PinnedVersion;
using store::Value;

// The answers of all owners to one fetch.
struct ValueService::Fetching {
  std::vector<rref::OwnerPart> parts;
  std::vector<Future<rpc::Reply>> replies;  // for each part; invalid for this worker's own part
  Future<store::Values> here;               // this worker's own part; invalid if there is none
  dist_autograd::ContextPtr context;        // records the fetch
  Receiving receiving;

  // Ready when all answers have come. Fails with the first error that arrives.
  Future<Unit> Came() const {
    const auto outcome = [](const auto& answer) { return answer.status(); };
    std::vector<Future<Unit>> all;
    for (const Future<rpc::Reply>& reply : replies)
      if (reply.valid()) all.push_back(reply.Then(outcome));
    if (here.valid()) all.push_back(here.Then(outcome));
    return all.size() == 1 ? all[0] : CollectAll(all).Then(outcome);
  }
};

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

// Returns the value without history: no tensor in it requires grad, including those in lists and
// maps.
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

// As ReadHere, with the tensors on `device`. What is there already is not copied.
absl::StatusOr<store::Values> ReadHereOn(const std::vector<RRef>& rrefs, bool record,
                                         Device* device) {
  PSD_ASSIGN_OR_RETURN(const std::vector<EntryPtr> entries, Here(rrefs));
  std::vector<store::Parameter*> parameters;
  for (const EntryPtr& entry : entries)
    if (entry->parameter != nullptr) parameters.push_back(entry->parameter.get());
  PSD_ASSIGN_OR_RETURN(std::vector<PinnedVersion> pinned, store::Parameter::PinAll(parameters));
  store::Values values;
  size_t next = 0;
  for (const EntryPtr& entry : entries) {
    if (entry->parameter == nullptr) {
      PSD_ASSIGN_OR_RETURN(const Value value, entry->Read());
      PSD_ASSIGN_OR_RETURN(Value moved, store::OnDevice(record ? value : Detached(value), device));
      values.push_back(std::move(moved));
      continue;
    }
    const PinnedVersion& version = pinned[next++];
    PSD_ASSIGN_OR_RETURN(Tensor tensor, store::OnDevice(version.tensor, device));
    values.push_back(record && entry->parameter->requires_grad()
                         ? Value(Variable::Leaf(std::move(tensor), entry->id, version.version))
                         : Value(std::move(tensor)));
  }
  return values;
}

absl::StatusOr<std::vector<PinnedVersion>> PinHere(const std::vector<RRef>& rrefs,
                                                   store::WantedDevice wanted) {
  PSD_ASSIGN_OR_RETURN(const std::vector<EntryPtr> entries, Here(rrefs));
  std::vector<store::Parameter*> parameters;
  for (const EntryPtr& entry : entries) {
    if (entry->parameter == nullptr) {
      return absl::InvalidArgumentError(
          absl::StrCat(entry->Label(), " is ", entry->KindName(), ", not a parameter"));
    }
    parameters.push_back(entry->parameter.get());
  }
  PSD_ASSIGN_OR_RETURN(std::vector<PinnedVersion> pinned, store::Parameter::PinAll(parameters));
  if (!wanted.has_value()) return pinned;
  for (PinnedVersion& version : pinned) {
    if (version.tensor.device() == *wanted) continue;
    PSD_ASSIGN_OR_RETURN(version.tensor, store::OnDevice(version.tensor, *wanted));
    version.written = nullptr;  // the copy is ordered behind it
  }
  return pinned;
}

absl::Status NotAsAsked(const std::string& owner, size_t expected, size_t got) {
  return absl::InternalError(
      absl::StrCat(owner, " was asked for ", expected, " values and sent ", got));
}

}  // namespace

Future<RRef> ValueService::GetOrCreate(const std::string& owner, const std::string& name,
                                       const program::Program& create, bool requires_grad,
                                       const rpc::CallOptions& options, Hosted hosted,
                                       const std::string& device) {
  v1::GetOrCreateRequest request;
  request.set_name(name);
  request.set_program(program::EncodeProgram(create));
  request.set_requires_grad(requires_grad);
  request.set_rows(hosted == Hosted::kRows);
  request.set_device(device);
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

ValueService::Receiving ValueService::Receive(const rpc::CallOptions& options,
                                              store::WantedDevice wanted) const {
  const bool bounded = options.timeout > absl::ZeroDuration();
  return {wanted, bounded ? uses_.clock.Now() + options.timeout : absl::InfiniteFuture()};
}

template <typename T, typename Decoder>
Future<T> ValueService::Received(const Future<rpc::Reply>& reply, const Receiving& receiving,
                                 Decoder decode) {
  Promise<T> promise;
  promise.HelpLike(reply);
  // Threads that read the network do not wait for the device.
  const bool may_wait = receiving.device() != nullptr;
  const Future<rpc::Reply> answer = may_wait ? reply.On(uses_.continuations) : reply;
  answer.OnReady([this, gate = gate_, promise, receiving, decode,
                  may_wait](const absl::StatusOr<rpc::Reply>& got) {
    if (!got.ok() || !device_pieces::LeavesOut(*got))
      return static_cast<void>(promise.Set(decode(got)));
    const rref::Gate::Entry entry(*gate);
    if (!entry.open()) return;  // dropping the promise tells the caller
    device_pieces::CollectPieces(Pieces(), *got, receiving.device(), receiving.deadline)
        .On(may_wait ? uses_.continuations : nullptr)
        .OnReady([promise, decode](const absl::StatusOr<rpc::Reply>& whole) {
          promise.Set(decode(whole));
        });
  });
  return promise.future();
}

Future<store::Values> ValueService::Fetch(const std::vector<RRef>& rrefs,
                                          const dist_autograd::ContextPtr& context,
                                          const rpc::CallOptions& options,
                                          store::WantedDevice wanted) {
  return FetchRecorded(rrefs, dist_autograd::RecordingContext(context), options, wanted);
}

Future<store::Values> ValueService::FetchRecorded(const std::vector<RRef>& rrefs,
                                                  const dist_autograd::ContextPtr& context,
                                                  const rpc::CallOptions& options,
                                                  store::WantedDevice wanted) {
  const absl::StatusOr<std::vector<rref::OwnerPart>> parts = rref::PartsByOwner(rrefs);
  if (!parts.ok()) return Future<store::Values>::Ready(parts.status()).On(uses_.continuations);
  const auto ask = [&](const rref::OwnerPart& part) {
    return FetchFrom(part.owner, part.Of(rrefs), context, options, wanted);
  };
  return rref::AskOwners<store::Value>(*parts, ask).On(uses_.continuations);
}

// Every answer is decoded as it comes, even if another one has failed; see Discard. Once the agent
// has stopped no answer comes, so futures that fail later do not use this service.
Future<store::Values> ValueService::FetchFrom(const std::string& owner,
                                              const std::vector<RRef>& rrefs,
                                              const dist_autograd::ContextPtr& context,
                                              const rpc::CallOptions& options,
                                              store::WantedDevice wanted) {
  if (owner == uses_.agent.self().name)
    return FetchHere(rrefs, context != nullptr, options, wanted);
  const Receiving receiving = Receive(options, wanted);
  // Captures the RRefs, so that the values live until the answer has come.
  return Received<store::Values>(
      StartFetch(owner, rrefs, context, /*versions=*/false, options, receiving.device()), receiving,
      [this, owner, rrefs, context, device = receiving.device()](
          const absl::StatusOr<rpc::Reply>& reply) -> absl::StatusOr<store::Values> {
        return Fetched(owner, rrefs.size(), context, reply, device);
      });
}

absl::StatusOr<store::Values> ValueService::FetchAndWait(const std::vector<RRef>& rrefs,
                                                         const dist_autograd::ContextPtr& context,
                                                         const rpc::CallOptions& options,
                                                         store::WantedDevice wanted) {
  PSD_ASSIGN_OR_RETURN(
      const Fetching fetching,
      StartFetches(rrefs, dist_autograd::RecordingContext(context), options, wanted));
  if (fetching.parts.size() > 1) {  // otherwise Decode waits for the only answer
    absl::Status came = fetching.Came().Wait().status();
    if (!came.ok()) {
      Discard(fetching);
      return came;
    }
  }
  return Decode(fetching);
}

absl::StatusOr<ValueService::Fetching> ValueService::StartFetches(
    const std::vector<RRef>& rrefs, const dist_autograd::ContextPtr& context,
    const rpc::CallOptions& options, store::WantedDevice wanted) {
  Fetching fetching;
  fetching.context = context;
  fetching.receiving = Receive(options, wanted);
  PSD_ASSIGN_OR_RETURN(fetching.parts, rref::PartsByOwner(rrefs));
  fetching.replies.resize(fetching.parts.size());
  for (size_t i = 0; i < fetching.parts.size(); ++i) {
    const rref::OwnerPart& part = fetching.parts[i];
    std::vector<RRef> some;
    if (fetching.parts.size() > 1) some = part.Of(rrefs);
    const std::vector<RRef>& mine = fetching.parts.size() > 1 ? some : rrefs;
    if (part.owner == uses_.agent.self().name) {
      fetching.here = FetchHere(mine, context != nullptr, options, wanted);
    } else {
      fetching.replies[i] = StartFetch(part.owner, mine, context, /*versions=*/false, options,
                                       fetching.receiving.device());
    }
  }
  return fetching;
}

absl::StatusOr<store::Values> ValueService::Decode(const Fetching& fetching) const {
  // The pieces of all owners come at the same time.
  std::vector<Future<rpc::Reply>> whole = fetching.replies;
  for (Future<rpc::Reply>& reply : whole) {
    if (!reply.valid()) continue;
    const absl::StatusOr<rpc::Reply>& answer = reply.Wait();
    if (!answer.ok() || !device_pieces::LeavesOut(*answer)) continue;
    reply = device_pieces::CollectPieces(Pieces(), *answer, fetching.receiving.device(),
                                         fetching.receiving.deadline);
  }
  std::vector<store::Values> answers;
  absl::Status status;
  for (size_t i = 0; i < fetching.parts.size(); ++i) {
    const auto& [owner, places] = fetching.parts[i];
    absl::StatusOr<store::Values> mine = whole[i].valid()
                                             ? Fetched(owner, places.size(), fetching.context,
                                                       whole[i].Wait(), fetching.receiving.device())
                                             : fetching.here.Wait();
    status.Update(mine.status());
    // After an error the other answers must still be decoded, see Discard.
    if (mine.ok()) answers.push_back(*std::move(mine));
  }
  PSD_RETURN_IF_ERROR(status);
  return rref::InOrder(fetching.parts, std::move(answers));
}

// The owner has counted the references in its answer for this worker. So every answer must be
// decoded and its references released, even if another answer failed.
void ValueService::Discard(const Fetching& fetching) {
  for (size_t i = 0; i < fetching.parts.size(); ++i) {
    if (!fetching.replies[i].valid()) continue;
    fetching.replies[i].OnReady(
        [this, owner = fetching.parts[i].owner,
         expected = fetching.parts[i].places.size()](const absl::StatusOr<rpc::Reply>& reply) {
          if (!reply.ok()) return;
          device_pieces::GiveUpPieces(Pieces(), *reply);
          Fetched(owner, expected, nullptr, reply, nullptr).IgnoreError();
        });
  }
}

Future<store::Values> ValueService::FetchHere(const std::vector<RRef>& rrefs, bool record,
                                              const rpc::CallOptions& options,
                                              store::WantedDevice wanted) {
  absl::Status usable = uses_.rrefs.CheckUsable(rrefs);
  if (!usable.ok()) return Future<store::Values>::Ready(usable);
  return uses_.creations.After<store::Values>(
      rrefs, options, [rrefs, record, wanted](const rpc::CallOptions&) {
        return Future<store::Values>::Ready(wanted.has_value() ? ReadHereOn(rrefs, record, *wanted)
                                                               : ReadHere(rrefs, record));
      });
}

absl::StatusOr<store::Values> ValueService::Fetched(const std::string& owner, size_t expected,
                                                    const dist_autograd::ContextPtr& context,
                                                    const absl::StatusOr<rpc::Reply>& reply,
                                                    Device* device) const {
  PSD_RETURN_IF_ERROR(reply.status());
  PSD_ASSIGN_OR_RETURN(store::Values values, uses_.exchange.DecodeReply(context, *reply, device));
  if (values.size() != expected) return NotAsAsked(owner, expected, values.size());
  return values;
}

Future<std::vector<PinnedVersion>> ValueService::Pull(const std::vector<RRef>& rrefs,
                                                      const rpc::CallOptions& options,
                                                      store::WantedDevice wanted) {
  auto parts = rref::PartsByOwner(rrefs);
  if (!parts.ok()) return Future<std::vector<PinnedVersion>>::Ready(parts.status());
  return rref::AskOwners<PinnedVersion>(*parts, [&](const rref::OwnerPart& part) {
    return PullFrom(part.owner, part.Of(rrefs), options, wanted);
  });
}

Future<std::vector<PinnedVersion>> ValueService::PullFrom(const std::string& owner,
                                                          std::vector<RRef> rrefs,
                                                          const rpc::CallOptions& options,
                                                          store::WantedDevice wanted) {
  using Result = absl::StatusOr<std::vector<PinnedVersion>>;
  if (owner == uses_.agent.self().name) {
    return uses_.creations.After<std::vector<PinnedVersion>>(
        rrefs, options, [rrefs, wanted](const rpc::CallOptions&) {
          return Future<std::vector<PinnedVersion>>::Ready(PinHere(rrefs, wanted));
        });
  }
  const Receiving receiving = Receive(options, wanted);
  const Future<rpc::Reply> reply =
      StartFetch(owner, rrefs, nullptr, /*versions=*/true, options, receiving.device());
  return Received<std::vector<PinnedVersion>>(
      reply, receiving,
      [owner, rrefs = std::move(rrefs),
       device = receiving.device()](const absl::StatusOr<rpc::Reply>& reply) -> Result {
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
          PSD_ASSIGN_OR_RETURN(Tensor tensor, store::OnDevice(tensors[i], device));
          pulled.push_back({std::move(tensor), fetched.versions(static_cast<int>(i))});
        }
        return pulled;
      });
}

Future<rpc::Reply> ValueService::StartFetch(const std::string& owner,
                                            const std::vector<RRef>& rrefs,
                                            const dist_autograd::ContextPtr& context, bool versions,
                                            const rpc::CallOptions& options, Device* device) {
  if (rref::AllMade(rrefs)) return SendFetch(owner, rrefs, context, versions, options, device);
  return uses_.creations.After<rpc::Reply>(
      rrefs, options,
      [this, owner, rrefs, context, versions, device](const rpc::CallOptions& left) {
        return SendFetch(owner, rrefs, context, versions, left, device);
      });
}

Future<rpc::Reply> ValueService::SendFetch(const std::string& owner, const std::vector<RRef>& rrefs,
                                           const dist_autograd::ContextPtr& context, bool versions,
                                           const rpc::CallOptions& options, Device* device) {
  using Result = Future<rpc::Reply>;
  absl::Status usable = uses_.rrefs.CheckUsable(rrefs);
  if (!usable.ok()) return Result::Ready(usable);
  v1::FetchRequest message;
  message.set_versions(versions);
  message.set_in_pieces(true);
  const rpc::PeerInfo lender = {owner, rrefs[0].body()->owner_incarnation()};
  if (auto offer = uses_.loans->OfferTo(lender, device)) *message.mutable_borrow() = *offer;
  message.mutable_incarnations()->Reserve(static_cast<int>(rrefs.size()));
  message.mutable_counters()->Reserve(static_cast<int>(rrefs.size()));
  for (const RRef& rref : rrefs) {
    message.add_incarnations(rref.value_id().incarnation);
    message.add_counters(rref.value_id().counter);
  }
  rpc::Request request;
  request.payload = rpc::PlainPayload(message);
  if (context != nullptr) {
    absl::Status wrapped = uses_.autograd.WrapRequest(context, owner, {}, request);
    if (!wrapped.ok()) return Result::Ready(std::move(wrapped));
  }
  const Result fetched =
      rpc::Ask(uses_.agent, kValueFetch,
               {owner, rrefs[0].body()->owner_incarnation(), /*session_bound=*/true},
               std::move(request), options);
  if (message.has_borrow()) {
    fetched.OnReady([loans = uses_.loans, lender,
                     offer = message.borrow()](const absl::StatusOr<rpc::Reply>& reply) {
      if (!reply.ok()) loans->Withdraw(lender, offer);
    });
  }
  return fetched;
}

}  // namespace psd::services
