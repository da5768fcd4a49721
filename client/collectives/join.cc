// Joining a group: the members meet at the registrar, connect, and meet again, so that all of them
// are ready when one makes its first call.
#include <algorithm>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "client/collectives/group.h"
#include "client/collectives/group_state.h"
#include "client/collectives/pause_before.h"
#include "client/collectives/time_left.h"
#include "client/runtime_of.h"
#include "core/base/clock.h"
#include "core/base/device.h"
#include "core/base/future.h"
#include "core/base/ids.h"
#include "core/base/quoted.h"
#include "core/base/remedy.h"
#include "core/base/status.h"
#include "core/rpc/registrar/registrar_client.h"
#include "core/rpc/rpc_agent.h"
#include "core/runtime/runtime.h"
#include "core/services/collectives/collective_service.h"
#include "core/services/collectives/device_calls.h"
#include "core/store/store.h"

namespace psd {
namespace {

constexpr size_t kMaxNameBytes = 128;
constexpr absl::Duration kProbe = absl::Seconds(1);  // for a member that may be alive

// The texts that ready members tell each other when they meet again: one of the first two, followed
// by kWithDevices if the member has a device with DeviceCollectives. A member that is not ready
// tells its error instead.
constexpr char kReady[] = "";
constexpr char kReadyShared[] = "shm";
constexpr char kWithDevices[] = "+devices";

// What all members have in common.
struct Common {
  bool shares_memory = true;  // they reach each other through shared memory
  bool has_devices = true;    // each has a device with DeviceCollectives
};

// Adds what a member has told. Returns false if it is not ready.
bool AddReady(absl::string_view told, Common& common) {
  common.has_devices &= absl::ConsumeSuffix(&told, kWithDevices);
  common.shares_memory &= told == kReadyShared;
  return told == kReady || told == kReadyShared;
}

// The description of itself that a member sends to the others when they first meet.
struct Told {
  std::string name;
  Incarnation incarnation = 0;
  int64_t rank = 0;     // in the job
  std::string address;  // empty if it does not listen
  uint64_t nonce = 0;   // that of rank 0 becomes the generation
  int64_t size = 0;     // GroupOptions::size
  std::string members;  // GroupOptions::members
};

Value ToValue(const Told& told) {
  return Value::OfMap({{"incarnation", static_cast<int64_t>(told.incarnation)},
                       {"rank", told.rank},
                       {"address", told.address},
                       {"nonce", static_cast<int64_t>(told.nonce)},
                       {"size", told.size},
                       {"members", told.members}});
}

absl::StatusOr<Told> FromValue(const std::string& name, const Value& value) {
  Told told;
  told.name = name;
  std::map<std::string, int64_t> numbers;
  std::map<std::string, std::string> texts;
  if (const Value::Map* map = value.AsMap()) {
    for (const auto& [key, field] : *map) {
      if (const auto* number = field.As<int64_t>()) numbers[key] = *number;
      if (const auto* text = field.As<std::string>()) texts[key] = *text;
    }
  }
  if (numbers.size() != 4 || texts.size() != 2) {
    return WithRemedy(
        absl::FailedPreconditionError(absl::StrCat(name, " joins with ", value.KindName())),
        "run compatible versions");
  }
  told.incarnation = static_cast<Incarnation>(numbers["incarnation"]);
  told.rank = numbers["rank"];
  told.address = texts["address"];
  told.nonce = static_cast<uint64_t>(numbers["nonce"]);
  told.size = numbers["size"];
  told.members = texts["members"];
  return told;
}

absl::Status CheckOptions(const Worker& worker, const std::string& name,
                          const GroupOptions& options) {
  if (name.empty() || name.size() > kMaxNameBytes) {
    return absl::InvalidArgumentError(absl::StrCat("the name of a group has 1 to ", kMaxNameBytes,
                                                   " bytes, this one ", name.size()));
  }
  if (options.timeout <= absl::ZeroDuration() || options.timeout == absl::InfiniteDuration() ||
      options.join_timeout <= absl::ZeroDuration()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "group ", Quoted(name), ": timeout is ", absl::FormatDuration(options.timeout),
        ", join_timeout ", absl::FormatDuration(options.join_timeout),
        "; both must be positive, and timeout finite, because every call has a deadline"));
  }
  if (options.members.empty()) return absl::OkStatus();
  const std::set<std::string> distinct(options.members.begin(), options.members.end());
  if (distinct.size() == options.members.size() && distinct.count(worker.name()) > 0)
    return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("group ", Quoted(name), ": the members ", absl::StrJoin(options.members, ", "),
                   " must be distinct and include this worker, ", worker.name()));
}

// Checks what all members have told, by rank. All of them get the same result.
absl::Status CheckTold(const std::string& name, const std::vector<Told>& told) {
  std::vector<std::string> deaf;
  for (const Told& member : told) {
    if (member.address.empty()) deaf.push_back(member.name);
    if (member.members != told[0].members) {
      return WithRemedy(absl::FailedPreconditionError(absl::StrCat(
                            "group ", Quoted(name), ": ", told[0].name, " joins with the members ",
                            told[0].members, ", ", member.name, " with ", member.members)),
                        "give the same list, in the same order, everywhere");
    }
    if (member.size != 0 && member.size != static_cast<int64_t>(told.size())) {
      return WithRemedy(absl::FailedPreconditionError(absl::StrCat(
                            "group ", Quoted(name), ": ", member.name, " joins with size ",
                            member.size, ", and ", told.size(), " workers have come")),
                        "give the size of `members`, or of the declared group");
    }
  }
  if (deaf.empty() || told.size() == 1) return absl::OkStatus();
  return WithRemedy(absl::FailedPreconditionError(absl::StrCat(
                        "group ", Quoted(name), ": ", absl::StrJoin(deaf, ", "), " of ",
                        told.size(), " members cannot be reached by the others")),
                    "let all members listen (WorkerOptions::listen)");
}

// Returns whether that incarnation of a worker answers. A registrar that was restarted may not know
// a living member yet.
bool Answers(worker::Runtime& runtime, const std::string& member, Incarnation incarnation) {
  rpc::CallOptions options;
  options.timeout = kProbe;
  const Future<rpc::PeerInfo> connected = runtime.agent().Connect(member, options);
  const absl::StatusOr<rpc::PeerInfo>& peer = connected.Wait();
  return peer.ok() && peer->incarnation == incarnation;
}

class Joining {
 public:
  Joining(Worker& worker, const std::string& name, const GroupOptions& options)
      : worker_(worker),
        runtime_(RuntimeOf(worker)),
        name_(name),
        options_(options),
        until_(Clock::Steady().Now() + options.join_timeout) {}

  // Meets the others, and returns what they told, by rank.
  absl::StatusOr<std::vector<Told>> Meet() {
    Told mine;
    mine.incarnation = runtime_.incarnation();
    mine.rank = worker_.rank();
    mine.address = worker_.address();
    mine.nonce = NewIncarnation();
    mine.size = static_cast<int64_t>(options_.size);
    mine.members = absl::StrJoin(options_.members, " ");
    PSD_ASSIGN_OR_RETURN(const auto values,
                         worker_.AllGather(absl::StrCat("psd.group ", name_), ToValue(mine),
                                           options_.members, Left()));
    std::vector<Told> told;
    for (const auto& [member, value] : values) {
      PSD_ASSIGN_OR_RETURN(told.emplace_back(), FromValue(member, value));
    }
    const std::vector<std::string>& order = options_.members;
    std::sort(told.begin(), told.end(), [&order](const Told& a, const Told& b) {
      if (order.empty()) return a.rank < b.rank;
      return std::find(order.begin(), order.end(), a.name) <
             std::find(order.begin(), order.end(), b.name);
    });
    PSD_RETURN_IF_ERROR(CheckTold(name_, told));
    return told;
  }

  // Connects to the members of higher rank; those of lower rank connect here. So there is one
  // connection between two members.
  absl::Status Connect(const std::vector<Told>& told, int rank) {
    rpc::CallOptions call;
    call.timeout = Left() / 2;  // the rest is for meeting again
    const absl::Time until = Clock::Steady().Now() + call.timeout;
    std::vector<Future<rpc::PeerInfo>> connected;
    for (int other = 0; other < static_cast<int>(told.size()); ++other) {
      if (other == rank) continue;
      runtime_.agent().AddPeer(told[other].name, told[other].address);
      if (other > rank) connected.push_back(runtime_.agent().Connect(told[other].name, call));
    }
    absl::Status status;
    for (size_t i = 0; i < connected.size(); ++i) {
      const Told& there = told[rank + 1 + static_cast<int>(i)];
      const absl::Status reached = AwaitIncarnation(there, std::move(connected[i]), until);
      if (reached.ok() || !status.ok()) continue;
      status = Annotate(reached, absl::StrCat(worker_.name(), " cannot reach ", there.name, " at ",
                                              there.address));
    }
    return status;
  }

  // Meets the others again, and tells whether this member is ready. Returns what all members have
  // in common. Errors: the first of a member that is not ready.
  absl::StatusOr<Common> MeetAgain(const std::vector<std::string>& members, int rank,
                                   uint64_t generation, const absl::Status& ready) {
    std::string mine(ready.message());
    if (ready.ok())
      mine = absl::StrCat(SharesMemory(members, rank) ? kReadyShared : kReady,
                          HasDevices() ? kWithDevices : "");
    PSD_ASSIGN_OR_RETURN(
        const auto values,
        worker_.AllGather(absl::StrCat("psd.group ", name_, " ", IncarnationToString(generation)),
                          mine, members, Left()));
    PSD_RETURN_IF_ERROR(ready);
    Common common;
    for (const auto& [member, value] : values) {
      const auto* told = value.As<std::string>();
      if (told != nullptr && AddReady(*told, common)) continue;
      return absl::UnavailableError(absl::StrCat("group ", Quoted(name_), ": ", member, ": ",
                                                 told != nullptr ? *told : value.KindName()));
    }
    return common;
  }

 private:
  absl::Duration Left() const { return TimeLeft(until_); }
  // Returns when this worker is connected with the member that has told so. If that was restarted
  // a moment ago, the session with its former incarnation may still be open.
  absl::Status AwaitIncarnation(const Told& there, Future<rpc::PeerInfo> connected,
                                absl::Time until) {
    for (;;) {
      const absl::StatusOr<rpc::PeerInfo>& answer = connected.Wait();
      if (!answer.ok()) return answer.status();
      if (answer->incarnation == there.incarnation) return absl::OkStatus();
      if (!PauseBefore(until, worker_)) {
        return WithRemedy(
            absl::UnavailableError(absl::StrCat(
                "incarnation ", IncarnationToString(answer->incarnation), " answers, and ",
                IncarnationToString(there.incarnation), " was met at the registrar")),
            "check that one worker of this name runs there");
      }
      rpc::CallOptions again;
      again.timeout = TimeLeft(until);
      connected = runtime_.agent().Connect(there.name, again);
    }
  }
  // Whether this member reaches those of higher rank, to which it has connected, through shared
  // memory. If all members say so, all pairs do.
  bool SharesMemory(const std::vector<std::string>& members, int rank) const {
    std::set<std::string> sharing;
    for (const rpc::PeerStatus& peer : runtime_.agent().Peers())
      if (peer.shares_memory()) sharing.insert(peer.peer.name);
    return std::all_of(members.begin() + rank + 1, members.end(),
                       [&](const std::string& member) { return sharing.count(member) > 0; });
  }

  bool HasDevices() const {
    const std::vector<std::shared_ptr<Device>> devices = runtime_.store().devices();
    return std::any_of(devices.begin(), devices.end(), [](const std::shared_ptr<Device>& device) {
      return device->collectives() != nullptr;
    });
  }

  Worker& worker_;
  worker::Runtime& runtime_;
  const std::string& name_;
  const GroupOptions& options_;
  const absl::Time until_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<Group>> Group::Join(Worker& worker, const std::string& name,
                                                   const GroupOptions& options) {
  const absl::Time until = Clock::Steady().Now() + options.join_timeout;
  GroupOptions left = options;
  for (;;) {
    absl::StatusOr<std::shared_ptr<Group>> group = JoinPresent(worker, name, left);
    if (!absl::IsNotFound(group.status()) || !PauseBefore(until, worker)) return group;
    left.join_timeout = TimeLeft(until);
  }
}

absl::StatusOr<std::shared_ptr<Group>> Group::JoinPresent(Worker& worker, const std::string& name,
                                                          const GroupOptions& options) {
  PSD_RETURN_IF_ERROR(CheckOptions(worker, name, options));
  auto state = std::make_unique<State>();
  state->name = name;
  state->timeout = options.timeout;
  worker::Runtime& runtime = RuntimeOf(worker);
  state->continuations = runtime.continuations();
  state->devices = runtime.store().devices();
  Joining joining(worker, name, options);
  std::vector<Told> told;
  if (options.members.size() == 1) {
    Told& mine = told.emplace_back();
    mine.name = worker.name();
    mine.incarnation = runtime.incarnation();
    mine.size = static_cast<int64_t>(options.size);
    PSD_RETURN_IF_ERROR(CheckTold(name, told));
  } else {
    PSD_ASSIGN_OR_RETURN(told, joining.Meet());
  }
  services::GroupMembers members;
  members.name = name;
  members.generation = told[0].nonce;
  for (const Told& member : told) {
    if (member.name == worker.name()) state->rank = static_cast<int>(state->members.size());
    state->members.push_back(member.name);
    state->incarnations.push_back(member.incarnation);
    members.workers.push_back({member.name, member.incarnation});
  }
  members.rank = state->rank;
  if (told.size() > 1) {
    PSD_ASSIGN_OR_RETURN(state->part, runtime.collectives().Make(std::move(members)));
    const absl::Status connected = joining.Connect(told, state->rank);
    const absl::StatusOr<Common> common =
        joining.MeetAgain(state->members, state->rank, told[0].nonce, connected);
    if (!common.ok()) {
      // Others may have joined.
      state->part->GiveUp(common.status());
      state->part->Leave(absl::ZeroDuration());
      return common.status();
    }
    state->part->set_shares_memory(common->shares_memory);
    if (common->has_devices)
      state->device_calls = services::DeviceCalls::Create(state->part, runtime.logger());
    state->part->Watch();
  }
  return std::shared_ptr<Group>(new Group(std::move(state)));
}

absl::StatusOr<std::vector<std::string>> Group::Survivors(Worker& worker,
                                                          const std::vector<std::string>& without,
                                                          absl::Time until) const {
  worker::Runtime& runtime = RuntimeOf(worker);
  rpc::CallOptions ask;
  ask.timeout = TimeLeft(until);
  std::vector<rpc::WorldMember> present;
  if (size() > 1) {
    PSD_ASSIGN_OR_RETURN(rpc::World world,
                         rpc::AskWorld(runtime.agent(), runtime.peers().registrar(), ask).Wait());
    present = std::move(world.members);
  }
  std::vector<std::string> survivors;
  for (size_t i = 0; i < state_->members.size(); ++i) {
    const std::string& member = state_->members[i];
    if (std::find(without.begin(), without.end(), member) != without.end()) continue;
    const bool known =
        size() == 1 ||
        std::any_of(present.begin(), present.end(), [&](const rpc::WorldMember& other) {
          return other.name == member && other.incarnation == state_->incarnations[i];
        });
    if (known) {
      survivors.push_back(member);
    } else if (member == worker.name() || Answers(runtime, member, state_->incarnations[i])) {
      return WithRemedy(absl::UnavailableError(absl::StrCat(
                            "group ", Quoted(name()), ": the registrar does not know ", member,
                            ", which is alive; the registrar may have been restarted")),
                        "build the group again when its lease has been renewed");
    }
  }
  if (!survivors.empty()) return survivors;
  return WithRemedy(
      absl::InvalidArgumentError(absl::StrCat(
          "group ", Quoted(name()), ": no member is left without ", absl::StrJoin(without, ", "))),
      "leave a member that is alive out of `without`");
}

absl::StatusOr<std::shared_ptr<Group>> Group::Rebuild(Worker& worker,
                                                      const std::vector<std::string>& without,
                                                      absl::Duration timeout) {
  const absl::Time until = Clock::Steady().Now() + timeout;
  state_->Leave(std::min(kMostLeaving, timeout));
  GroupOptions options;
  options.timeout = state_->timeout;
  for (;;) {
    const auto join = [&]() -> absl::StatusOr<std::shared_ptr<Group>> {
      PSD_ASSIGN_OR_RETURN(options.members, Survivors(worker, without, until));
      options.join_timeout = TimeLeft(until);
      return JoinPresent(worker, state_->name, options);
    };
    absl::StatusOr<std::shared_ptr<Group>> group = join();
    // A member that died after the registrar was asked is not among the survivors next time.
    const bool again = absl::IsUnavailable(group.status()) || absl::IsAborted(group.status()) ||
                       absl::IsNotFound(group.status());
    if (!again || !PauseBefore(until, worker)) return group;
  }
}

}  // namespace psd
