// Saves in which some owners write their own files and others cannot.

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "client/checkpoint.h"
#include "client/psd.h"
#include "client/runtime_of.h"
#include "core/base/buffer.h"
#include "core/base/ids.h"
#include "core/checkpoint/checkpoint_root.h"
#include "core/checkpoint/save_folder.h"
#include "core/checkpoint/save_reader.h"
#include "core/rpc/message_io.h"
#include "core/rpc/rpc_agent.h"
#include "core/runtime/runtime.h"
#include "core/services/checkpoint/save_service.h"
#include "core/services/checkpoint/save_table.h"
#include "core/store/store.h"
#include "core/tensor/dtype.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/psd/v1/checkpoint.pb.h"
#include "tests/client/test_world.h"
#include "tests/core/checkpoint/fake_file_system.h"
#include "tests/core/checkpoint/fake_root.h"
#include "tests/core/store/changing_for_tests.h"

namespace psd {
namespace {

using checkpoint::CheckpointRoot;
using checkpoint::FakeFileSystem;
using checkpoint::FakeRoot;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Returns the contents of the safetensors files in a folder, by file name.
std::map<std::string, std::string> TensorFiles(const std::string& folder) {
  std::map<std::string, std::string> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".safetensors") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[entry.path().filename().string()] =
        std::string(std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>());
  }
  return files;
}

class OwnFilesTest : public ::testing::Test {
 protected:
  OwnFilesTest() {
    if (mkdtemp(dir_.data()) == nullptr) std::abort();
    dir_ = std::filesystem::canonical(dir_).string();
    for (const char* folder : {"/shared", "/elsewhere"})
      std::filesystem::create_directory(dir_ + folder);
  }
  ~OwnFilesTest() override { std::filesystem::remove_all(dir_); }

  std::shared_ptr<CheckpointRoot> Root(const std::string& folder) {
    return Must(CheckpointRoot::Open(dir_ + "/" + folder));
  }
  void AddOwner(const std::string& name, std::shared_ptr<CheckpointRoot> root) {
    worker::RuntimeOptions options;
    options.checkpoint_root = std::move(root);
    owners_.push_back(std::make_unique<TestOwner>(name, std::move(options)));
  }
  std::unique_ptr<Worker> Attach() {
    std::vector<OwnerAddress> addresses;
    for (const auto& owner : owners_) addresses.push_back(owner->address());
    return StartTrainer("trainer", addresses);
  }
  // Makes and steps parameters on every owner, so that there is optimizer state, and a table of
  // rows on the first one.
  void Train(Worker& worker) {
    std::vector<RRef> rrefs;
    for (const auto& owner : owners_) {
      const std::string name = owner->address().name;
      for (int i = 0; i < 3; ++i)
        rrefs.push_back(MakeParameter(worker, name, name + std::to_string(i),
                                      Must(Tensor::Full(Shape{2000 + i}, DType::kF32, i + 1))));
    }
    optimizer_ = Must(DistributedOptimizer::Create(worker, "main", Adam{}, rrefs));
    for (int i = 0; i < 2; ++i) {
      Context context = Must(worker.NewContext());
      std::vector<Variable> roots;
      for (const Variable& w : Must(worker.ToHere(rrefs, context))) roots.push_back(Sum(w * w));
      ASSERT_TRUE(context.Backward(roots).ok());
      ASSERT_TRUE(optimizer_->Step(context).ok());
    }
    CreateOptions rows;
    rows.rows = true;
    rows.requires_grad = true;
    Must(
        worker.GetOrCreate(owners_[0]->address().name, "table", Uniform({500, 8}, -1, 1, 3), rows));
  }
  SaveOptions Into(const std::string& folder) {
    SaveOptions options;
    options.dir = dir_ + "/" + folder;
    options.batch_bytes = 10'000;
    return options;
  }
  static void Verify(const std::string& folder) {
    auto save = Must(checkpoint::SaveReader::Open(checkpoint::FileSystem::Posix(), folder));
    const absl::Status verified = save->Verify(nullptr);
    EXPECT_TRUE(verified.ok()) << verified;
    EXPECT_FALSE(std::filesystem::exists(folder + "/token"));
  }

  std::string dir_ = ::testing::TempDir() + "/ownXXXXXX";
  std::vector<std::unique_ptr<TestOwner>> owners_;
  std::unique_ptr<DistributedOptimizer> optimizer_;
};

TEST_F(OwnFilesTest, BothWaysGiveTheSameFiles) {
  AddOwner("a", Root("shared"));
  AddOwner("b", Root("shared"));
  auto worker = Attach();
  Train(*worker);
  for (const size_t whole_bytes : {size_t{1} << 20, size_t{5000}}) {  // whole and in pieces
    SaveOptions own = Into("shared/deeper/saves"), streamed = Into("elsewhere");
    own.whole_bytes = streamed.whole_bytes = whole_bytes;
    own.name = streamed.name = std::to_string(whole_bytes);
    uint64_t told = 0, total = 0;
    own.progress = [&](const TransferProgress& progress) {
      EXPECT_GE(progress.bytes, told);
      told = progress.bytes;
      total = progress.total_bytes;
      return true;
    };
    const SaveSummary by_owners = Must(SaveModel(*worker, own));
    EXPECT_THAT(by_owners.streamed, IsEmpty());
    EXPECT_EQ(told, total);
    const SaveSummary here = Must(SaveModel(*worker, streamed));
    EXPECT_THAT(here.streamed, ElementsAre(HasSubstr("a: the folder of the save is not below"),
                                           HasSubstr("b: the folder of the save is not below")));
    EXPECT_EQ(by_owners.bytes, here.bytes);
    Verify(by_owners.folder);
    Verify(here.folder);
    EXPECT_EQ(TensorFiles(by_owners.folder), TensorFiles(here.folder));
    EXPECT_EQ(TensorFiles(here.folder).size(), 4u);
  }
}

TEST_F(OwnFilesTest, WhoCannotReachTheFolderStreams) {
  AddOwner("a", Root("shared"));
  AddOwner("b", nullptr);
  AddOwner("c", Root("elsewhere"));
  AddOwner("d", std::make_shared<FakeRoot>(std::make_shared<FakeFileSystem>()));
  AddOwner("e", Root("shared"));
  auto worker = Attach();
  Train(*worker);
  const SaveSummary saved = Must(SaveModel(*worker, Into("shared")));
  EXPECT_THAT(saved.streamed, ElementsAre(HasSubstr("c: the folder of the save is not below"),
                                          "d: another folder"));
  Verify(saved.folder);
  LoadOptions load;
  load.dir = dir_ + "/shared";
  EXPECT_EQ(Must(LoadModel(*worker, load)).values.size(), 5u);
}

// Claims to find every folder, and writes to a file system that the saving worker cannot see.
class StubbornRoot : public CheckpointRoot {
 public:
  explicit StubbornRoot(std::shared_ptr<FakeFileSystem> disk) : disk_(std::move(disk)) {}
  absl::StatusOr<std::unique_ptr<checkpoint::FoundFolder>> Find(const std::string& path,
                                                                const std::string&) override {
    return std::make_unique<checkpoint::FakeFolder>(disk_, path);
  }

 private:
  const std::shared_ptr<FakeFileSystem> disk_;
};

TEST_F(OwnFilesTest, FilesThatCannotBeSeenHereAreStreamed) {
  AddOwner("a", std::make_shared<StubbornRoot>(std::make_shared<FakeFileSystem>()));
  auto worker = Attach();
  Train(*worker);
  const SaveSummary saved = Must(SaveModel(*worker, Into("shared")));
  EXPECT_THAT(saved.streamed, ElementsAre(HasSubstr("a: cannot open")));
  Verify(saved.folder);
}

// Answers only after the caller has given up.
class SlowRoot : public CheckpointRoot {
 public:
  absl::StatusOr<std::unique_ptr<checkpoint::FoundFolder>> Find(const std::string&,
                                                                const std::string&) override {
    absl::SleepFor(absl::Seconds(10));
    return absl::FailedPreconditionError("too slow");
  }
};

// Counts the open files of unfinished saves in this process, in which the owners run too.
int OpenUnfinished(const std::string& dir) {
  int open = 0;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string to = std::filesystem::read_symlink(entry.path(), error).string();
    if (!error && to.find(dir + "/.saving-") == 0) ++open;
  }
  return open;
}

TEST_F(OwnFilesTest, WhereOneOwnerDoesNotAnswerTheOthersLetGo) {
  AddOwner("a", std::make_shared<SlowRoot>());
  AddOwner("b", Root("shared"));
  auto worker = Attach();
  Train(*worker);
  SaveOptions save = Into("shared");
  save.timeout = absl::Seconds(5);
  EXPECT_EQ(SaveModel(*worker, save).status().code(), absl::StatusCode::kDeadlineExceeded);
  const absl::Time end = absl::Now() + absl::Seconds(60);
  while (OpenUnfinished(save.dir) > 0 && absl::Now() < end) absl::SleepFor(absl::Milliseconds(10));
  EXPECT_EQ(OpenUnfinished(save.dir), 0);
}

TEST_F(OwnFilesTest, AFullDiskOfTheOwnerIsToldWithItsFile) {
  auto disk = std::make_shared<FakeFileSystem>();
  AddOwner("a", std::make_shared<FakeRoot>(disk));
  auto worker = Attach();
  Train(*worker);
  SaveOptions save = Into("saves");
  save.files = disk;
  const std::string good = Must(SaveModel(*worker, save)).folder;
  uint64_t used = 0;
  for (const auto& [path, bytes] : disk->files()) used += bytes.size();
  const auto before = disk->files();
  disk->claims_free = uint64_t{1} << 40;
  for (const uint64_t room : {uint64_t{100}, uint64_t{30'000}, uint64_t{70'000}}) {
    disk->capacity = used + room;
    const absl::Status full = SaveModel(*worker, save).status();
    EXPECT_EQ(full.code(), absl::StatusCode::kResourceExhausted) << full;
    EXPECT_THAT(std::string(full.message()), HasSubstr("saving a"));
    EXPECT_THAT(std::string(full.message()), HasSubstr("disk full"));
    EXPECT_EQ(disk->files(), before);
    EXPECT_THAT(std::string(full.message()), HasSubstr("-a")) << "the file";
    disk->capacity = UINT64_MAX;
    EXPECT_EQ(Must(checkpoint::FindSave(*disk, save.dir)), good);
  }
  EXPECT_TRUE(SaveModel(*worker, save).ok());
}

TEST_F(OwnFilesTest, StoppedInTheMiddle) {
  AddOwner("a", Root("shared"));
  auto worker = Attach();
  Train(*worker);
  SaveOptions save = Into("shared");
  const std::string good = Must(SaveModel(*worker, save)).folder;
  save.progress = [](const TransferProgress& progress) { return progress.bytes < 20'000; };
  EXPECT_EQ(SaveModel(*worker, save).status().code(), absl::StatusCode::kCancelled);
  save.progress = nullptr;
  EXPECT_EQ(Must(checkpoint::FindSave(*checkpoint::FileSystem::Posix(), save.dir)), good);
  const auto names = Must(checkpoint::FileSystem::Posix()->List(save.dir));
  EXPECT_EQ(names.size(), 2u) << "the save and latest";
  EXPECT_TRUE(SaveModel(*worker, save).ok()) << "and the next one works";
}

TEST_F(OwnFilesTest, AnOwnerWritesTheFilesOfFewSavesAtOnce) {
  AddOwner("a", Root("shared"));
  std::vector<std::unique_ptr<Worker>> workers;
  int here = 0;
  for (size_t i = 0; i <= services::SaveTable::kMaxSaves; ++i) {
    const std::string folder = dir_ + "/shared/.saving-" + std::to_string(i), token(32, 'a');
    std::filesystem::create_directory(folder);
    std::ofstream(folder + "/token") << token;
    workers.push_back(StartTrainer("trainer" + std::to_string(i), {owners_[0]->address()}));
    worker::Runtime& runtime = RuntimeOf(*workers.back());
    const auto opened = Must(
        runtime.saves()
            .Open("a", runtime.ids().Next(), {folder, token, {{"values-a.safetensors", {}}}}, {})
            .Wait());
    here += opened.here ? 1 : 0;
    if (!opened.here) {
      EXPECT_THAT(opened.why_not, HasSubstr("4 saves already"));
    }
  }
  EXPECT_EQ(here, static_cast<int>(services::SaveTable::kMaxSaves));
}

// Room that a peer has not filled must not show it the former contents of the owner's memory.
TEST_F(OwnFilesTest, RoomForALoadIsZeros) {
  AddOwner("a", nullptr);
  auto worker = Attach();
  const auto call = [&](const char* method, const auto& message) {
    return RuntimeOf(*worker)
        .agent()
        .StartCall("a", rpc::PlainRequest(method, message), {})
        .reply()
        .Wait();
  };
  v1::RoomRequest room;
  room.set_counter(7);
  v1::StateArray* array = room.add_arrays();
  array->set_dtype(static_cast<uint32_t>(DType::kF32));
  array->add_shape(5000);
  ASSERT_TRUE(call("checkpoint.make_room", room).ok());
  v1::PieceRequest piece;
  piece.set_counter(7);
  piece.set_bytes(20'000);
  const auto reply = call("checkpoint.fetch", piece);
  ASSERT_TRUE(reply.ok()) << reply.status();
  ASSERT_EQ(reply->payload.buffers.size(), 1u);
  EXPECT_EQ(reply->payload.buffers[0].view(), std::string(20'000, '\0'));
}

// Calls that no correct save makes are answered with an error, and nothing is written.
TEST_F(OwnFilesTest, HostileCalls) {
  AddOwner("a", Root("shared"));
  auto worker = Attach();
  Train(*worker);
  const auto call = [&](const char* method, const auto& message, bool as_buffer) {
    rpc::Request request = rpc::PlainRequest(method, message);
    if (as_buffer) {
      request.payload.buffers.push_back(Buffer::FromString(std::move(request.payload.header)));
      request.payload.header.clear();
    }
    return RuntimeOf(*worker).agent().StartCall("a", std::move(request), {}).reply().Wait();
  };
  const std::string folder = dir_ + "/shared/.saving-1", token(32, 'a');
  std::filesystem::create_directory(folder);
  std::ofstream(folder + "/token") << token;
  v1::OpenSaveRequest open;
  open.set_counter(1);
  open.set_folder(folder);
  open.set_token(token);
  const auto refused = [&](const std::string& name) {
    open.clear_files();
    open.add_files()->set_name(name);
    const auto reply = call("save.open", open, true);
    if (!reply.ok()) return true;
    return !Must(rpc::ParseMessage<v1::OpenSaveReply>(reply->payload.header, "")).here();
  };
  for (const char* name :
       {"../values-a.safetensors", "values-b.safetensors", "latest", "token", ""})
    EXPECT_TRUE(refused(name)) << name;
  EXPECT_FALSE(call("save.open", open, false).ok());

  v1::WriteSaveRequest write;
  write.set_counter(1);
  EXPECT_EQ(call("save.write", write, false).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(call("save.finish", v1::FinishSaveRequest(), false).status().code(),
            absl::StatusCode::kNotFound);
  ASSERT_FALSE(refused("values-a.safetensors"));
  EXPECT_TRUE(refused("state-a-0.safetensors")) << "the save is under way";
  open.set_counter(2);
  EXPECT_TRUE(refused("values-a.safetensors")) << "it is there now";
  ASSERT_FALSE(refused("state-a-0.safetensors"));
  write.set_number(1000);
  EXPECT_FALSE(call("save.write", write, false).ok());
  write.set_number(0);
  write.mutable_piece()->set_counter(99);
  EXPECT_EQ(call("save.write", write, false).status().code(), absl::StatusCode::kNotFound);
  write.clear_piece();
  write.add_items()->set_counter(12345);
  EXPECT_EQ(call("save.write", write, false).status().code(), absl::StatusCode::kNotFound);
  // A value that is not a tensor cannot be written.
  const GlobalId text =
      Must(owners_[0]
               ->runtime()
               .store()
               .GetOrCreate(store::ChangingForTests::Make(), "text", {},
                            [] { return absl::StatusOr<store::Value>(store::Value("text")); })
               .Wait())
          ->id;
  write.mutable_items(0)->set_incarnation(text.incarnation);
  write.mutable_items(0)->set_counter(text.counter);
  write.mutable_items(0)->add_files(0);
  EXPECT_EQ(call("save.write", write, false).status().code(), absl::StatusCode::kInvalidArgument);
  v1::ExportRequest hold;
  hold.set_held_counter(7);
  *hold.add_items() = write.items(0);
  EXPECT_EQ(call("checkpoint.export", hold, false).status().code(),
            absl::StatusCode::kInvalidArgument);
  v1::FinishSaveRequest finish;
  finish.set_counter(1);
  finish.add_counts(3);
  EXPECT_FALSE(call("save.finish", finish, false).ok());
  finish.add_count_files(17);
  EXPECT_FALSE(call("save.finish", finish, false).ok());
  EXPECT_TRUE(call("save.close", write, false).ok());
  EXPECT_EQ(std::filesystem::file_size(folder + "/values-a.safetensors"), 0u);
}

}  // namespace
}  // namespace psd
