// psctl inspect: prints the contents of a save or of any safetensors file, and compares checksums.

#include <unistd.h>

#include <cstdio>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/strip.h"
#include "core/base/status.h"
#include "core/checkpoint/safetensors_format.h"
#include "core/checkpoint/save_folder.h"
#include "core/checkpoint/save_reader.h"
#include "tools/cli/command.h"
#include "tools/cli/progress_bar.h"
#include "tools/cli/table.h"

namespace psd::cli {
namespace {

using checkpoint::CheckpointIndex;
using checkpoint::FileSystem;
using checkpoint::SaveReader;

absl::Status InspectTensors(const Options& options, const std::string& path) {
  PSD_ASSIGN_OR_RETURN(auto file, FileSystem::Posix()->Open(path));
  PSD_ASSIGN_OR_RETURN(checkpoint::SafetensorsHeader header,
                       checkpoint::ReadSafetensorsHeader(*file, path));
  std::printf("%s: %zu tensors, %s\n", Printable(path).c_str(), header.tensors.size(),
              FormatBytes(file->size()).c_str());
  for (const auto& [key, value] : header.metadata)
    std::printf("%s: %s\n", Printable(key).c_str(), Printable(value).c_str());
  Table table({"NAME", "DTYPE", "SHAPE", ">SIZE"});
  for (const checkpoint::SafetensorsEntry& tensor : header.tensors) {
    table.AddRow({tensor.name, std::string(tensor.type->name), tensor.shape.ToString(),
                  FormatBytes(tensor.bytes)});
  }
  if (!table.empty()) std::printf("\n%s", table.ToString(options.color).c_str());
  return absl::OkStatus();
}

void PrintValues(const CheckpointIndex& index, const Options& options) {
  Table table({"OWNER", "NAME", "KIND", "DTYPE", "SHAPE", ">VERSION", "FILE"});
  for (const checkpoint::SavedValue& value : index.values) {
    const bool parameter = value.kind != checkpoint::ValueKind::kTensor;
    const bool rows = value.kind == checkpoint::ValueKind::kRows;
    table.AddRow({value.owner, value.name,
                  rows        ? "rows"
                  : parameter ? "parameter"
                              : "tensor",
                  std::string(DTypeName(value.dtype)), value.shape.ToString(),
                  parameter ? absl::StrCat(value.version) : "-", value.file});
  }
  if (!table.empty()) std::printf("\n%s", table.ToString(options.color).c_str());
}

void PrintOptimizers(const CheckpointIndex& index, const Options& options) {
  Table table({"OPTIMIZER", "TYPE", ">PARAMETERS", ">STEPS", "OPTIONS"});
  for (const checkpoint::SavedOptimizer& optimizer : index.optimizers) {
    for (const auto& group : optimizer.groups) {
      const bool first = &group == &optimizer.groups.front();
      table.AddRow({first ? optimizer.name : "", first ? optimizer.type : "",
                    first ? absl::StrCat(optimizer.parameters.size()) : "",
                    first ? absl::StrCat(optimizer.steps_accepted) : "",
                    absl::StrJoin(group.options, " ", absl::PairFormatter("="))});
    }
  }
  if (!table.empty()) std::printf("\n%s", table.ToString(options.color).c_str());
}

absl::Status InspectSave(const Options& options, const std::string& folder) {
  PSD_ASSIGN_OR_RETURN(std::unique_ptr<SaveReader> save,
                       SaveReader::Open(FileSystem::Posix(), folder));
  const CheckpointIndex& index = save->index();
  std::printf("%s: saved %s by psd %s; %zu files, %s\n", Printable(folder).c_str(),
              Printable(index.created).c_str(), Printable(index.psd_version).c_str(),
              index.files.size(), FormatBytes(save->bytes()).c_str());
  PrintValues(index, options);
  PrintOptimizers(index, options);
  for (const std::string& text : index.left_out)
    std::printf("left out: %s\n", Printable(text).c_str());
  {
    ProgressBar bar(stderr, ::isatty(STDERR_FILENO) == 1);
    uint64_t done = 0;
    PSD_RETURN_IF_ERROR(save->Verify([&](uint64_t bytes) {
      done += bytes;
      bar.Show("verifying", done, save->bytes(), absl::Now());
      return true;
    }));
  }
  std::printf("\nall checksums are right\n");
  return absl::OkStatus();
}

}  // namespace

absl::Status RunInspect(const Options& options, const std::vector<std::string>& arguments) {
  const std::string& path = arguments[0];
  if (absl::EndsWith(path, checkpoint::kSafetensorsSuffix)) return InspectTensors(options, path);
  absl::string_view folder = path;
  if (folder == checkpoint::kIndexFileName) folder = ".";
  absl::ConsumeSuffix(&folder, absl::StrCat("/", checkpoint::kIndexFileName));
  PSD_ASSIGN_OR_RETURN(std::string save,
                       checkpoint::FindSave(*FileSystem::Posix(), std::string(folder)));
  return InspectSave(options, save);
}

}  // namespace psd::cli
