// Answers which workers the job has, and resolves the worker that a call goes to.
#include "client/worker_info.h"

#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/psd.h"
#include "client/worker_state.h"
#include "core/base/nearest_name.h"
#include "core/rpc/registrar/registrar_client.h"
#include "core/runtime/runtime.h"

namespace psd {

Value WorkerInfo::ToValue() const {
  return Value::OfMap(
      {{"name", name}, {"incarnation", static_cast<int64_t>(incarnation)}, {"rank", rank}});
}

absl::StatusOr<WorkerInfo> WorkerInfo::FromValue(const Value& value) {
  const Value::Map* map = value.AsMap();
  WorkerInfo info;
  int found = 0;
  for (size_t i = 0; map != nullptr && i < map->size(); ++i) {
    const auto& [key, field] = (*map)[i];
    if (const auto* name = field.As<std::string>(); name != nullptr && key == "name") {
      info.name = *name;
      ++found;
    }
    const auto* number = field.As<int64_t>();
    if (number != nullptr && key == "incarnation") {
      info.incarnation = static_cast<Incarnation>(*number);
      ++found;
    }
    if (number != nullptr && key == "rank" && *number >= 0 &&
        *number <= std::numeric_limits<int>::max()) {
      info.rank = static_cast<int>(*number);
      ++found;
    }
  }
  if (found == 3 && map->size() == 3) return info;
  return absl::InvalidArgumentError(absl::StrCat(
      value.KindName(), " is no worker info: that is a map of name, incarnation, rank"));
}

absl::StatusOr<std::vector<WorkerInfo>> Worker::State::AskInfos() {
  PSD_RETURN_IF_ERROR(CheckRunning());
  const std::string registrar = runtime->peers().registrar();
  if (registrar.empty()) {
    return std::vector<WorkerInfo>{{options.name, runtime->incarnation(), 0}};
  }
  PSD_ASSIGN_OR_RETURN(rpc::World world,
                       rpc::AskWorld(runtime->agent(), registrar, ToCallOptions({})).Wait());
  std::vector<WorkerInfo> infos;
  infos.reserve(world.members.size());
  for (const rpc::WorldMember& member : world.members) {
    infos.push_back({member.name, member.incarnation, static_cast<int>(member.rank)});
  }
  return infos;
}

absl::Status Worker::State::MakeReachable(const std::string& name) {
  if (runtime->agent().ReachOf(name) == rpc::Reach::kReachable) return absl::OkStatus();
  return runtime->peers().MakeKnown(name).Wait().status();
}

absl::StatusOr<std::string> Worker::State::Resolve(const Callee& callee) {
  if (const auto* name = std::get_if<std::string>(&callee.who())) {
    PSD_RETURN_IF_ERROR(MakeReachable(*name));
    return *name;
  }
  if (const auto* info = std::get_if<WorkerInfo>(&callee.who())) {
    PSD_RETURN_IF_ERROR(MakeReachable(info->name));
    return info->name;
  }
  const int rank = std::get<int>(callee.who());
  PSD_ASSIGN_OR_RETURN(std::vector<WorkerInfo> infos, AskInfos());
  for (const WorkerInfo& info : infos) {
    if (info.rank != rank) continue;
    PSD_RETURN_IF_ERROR(MakeReachable(info.name));
    return info.name;
  }
  return absl::NotFoundError(
      absl::StrCat("no worker of the job has rank ", rank, "; it has ", infos.size(), " workers"));
}

WorkerInfo Worker::Info() const {
  return {name(), state_->runtime->incarnation(), rank()};
}

absl::StatusOr<std::vector<WorkerInfo>> Worker::Infos() {
  return state_->AskInfos();
}

absl::StatusOr<WorkerInfo> Worker::Info(const std::string& name) {
  PSD_ASSIGN_OR_RETURN(std::vector<WorkerInfo> infos, Infos());
  std::vector<std::string> names;
  for (const WorkerInfo& info : infos) {
    if (info.name != this->name()) names.push_back(info.name);
    if (info.name != name) continue;
    // A worker that does not listen is returned, too; it may connect later.
    state_->MakeReachable(name).IgnoreError();
    return info;
  }
  return absl::NotFoundError(
      absl::StrCat("the job has no worker '", name, "'", DidYouMean(NearestName(name, names))));
}

}  // namespace psd
