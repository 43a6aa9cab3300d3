// The messages of a training step without its network, for SimGrid's SMPI: how long would the step take on a cluster
// that is only described? Built by smpicxx, run by smpirun; `mpitrain bench simulate` does both.
//
//   P ranks, N of each node      R rows of all ranks      n numbers a row
//
// A rank computes as long as was measured, then all rows are added. Ranks of one node do so in its memory: each copies
// its rows there, waits for the last one, and adds all of them. Of several nodes one rank each, the leader, adds its
// node's rows and exchanges the sum with the other leaders by recursive doubling; a second meeting gives the total to
// the node's ranks. Runs of rows that are no aligned subtrees travel whole, from leader to leader round a ring.
#include <mpi.h>
#include <smpi/smpi.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "partition.hpp"
#include "virtual_ranks.hpp"

namespace {

constexpr double flops_a_second = 1e9;  // of a core, as platform.py describes all of them
constexpr int meeting_tag = 1;

struct StepOptions {
    int ranks_per_node = 1;     // N
    std::int64_t num_rows = 1;  // R
    int row_length = 1;         // n
    double computing_s = 0;     // of the rank with most rows
    double row_s = 0;           // for copying, or adding, one row in the node's memory
    int num_steps = 4;          // timed, after one that is not
    bool adds_numbers = false;  // whether rows hold numbers, whose sum is printed
};

/// Where this rank is.
struct Place {
    int rank, world_size, ranks_per_node;

    int node() const { return rank / ranks_per_node; }
    int num_nodes() const { return (world_size + ranks_per_node - 1) / ranks_per_node; }
    int leader_of(int node) const { return node * ranks_per_node; }
    int end_of(int node) const { return std::min(leader_of(node + 1), world_size); }
    bool leads() const { return rank == leader_of(node()); }
};

/// Keeps this rank's core busy.
void work(double seconds) {
    if (seconds > 0) smpi_execute_flops(seconds * flops_a_second);
}

/// All ranks of the simulator are one process: what is static here is memory that they share. Without numbers all rows
/// of all ranks are one.
class NodeMemory {
  public:
    NodeMemory(const StepOptions& options, int node) : options_(options) {
        static std::map<int, std::vector<float>> of_nodes;
        const auto length = static_cast<std::size_t>(options.row_length);
        std::vector<float>& mine = of_nodes[options.adds_numbers ? node : 0];
        mine.resize(options.adds_numbers ? length * static_cast<std::size_t>(options.num_rows + 1) : length);
        rows_ = mine.data();
    }
    /// Row v of the R rows [n]; row R is the total's.
    float* row(std::int64_t v) const { return options_.adds_numbers ? rows_ + v * options_.row_length : rows_; }
    float* total() const { return row(options_.num_rows); }

  private:
    const StepOptions& options_;
    float* rows_;
};

class Step {
  public:
    Step(const StepOptions& options, const Place& place)
        : options_(options),
          place_(place),
          row_s_(place.world_size == 1 ? 0 : options.row_s),  // what one rank adds was measured as computing
          own_(rank_range(options.num_rows, place.world_size, place.rank)),
          memory_(options, place.node()),
          received_(options.adds_numbers ? static_cast<std::size_t>(options.row_length) : 0) {
        for (int rank = 0; rank < place.world_size; ++rank) {
            most_rows_ = std::max(most_rows_, rank_range(options.num_rows, place.world_size, rank).size());
        }
    }

    void take() {
        work(options_.computing_s * static_cast<double>(own_.size()) / static_cast<double>(most_rows_));
        write_own_rows();
        meet();
        if (place_.num_nodes() == 1) {
            add_rows({0, options_.num_rows});
            return;
        }
        if (place_.leads()) is_even() ? double_recursively() : gather_and_add();
        meet();
        if (!place_.leads()) work(row_s_);
    }

    const float* total() const { return memory_.total(); }

  private:
    /// The rows of a node's ranks, which follow one another.
    Range rows_of(int node) const {
        const Range first = rank_range(options_.num_rows, place_.world_size, place_.leader_of(node));
        const Range last = rank_range(options_.num_rows, place_.world_size, place_.end_of(node) - 1);
        return {first.start, last.stop};
    }

    /// Whether each node's rows are one aligned subtree of the tree over all rows.
    bool is_even() const {
        const std::int64_t here = options_.num_rows / place_.num_nodes();
        const auto is_power_of_two = [](std::int64_t number) { return (number & (number - 1)) == 0; };
        return place_.world_size % place_.ranks_per_node == 0 && options_.num_rows % place_.num_nodes() == 0 &&
               is_power_of_two(here) && is_power_of_two(place_.num_nodes());
    }

    void write_own_rows() {
        for (std::int64_t v = own_.start; v < own_.stop; ++v) {
            for (int i = 0; options_.adds_numbers && i < options_.row_length; ++i) {
                memory_.row(v)[i] = 1.0F / static_cast<float>(1 + v + i);  // no order of addition gives another's bits
            }
        }
        work(row_s_ * static_cast<double>(own_.size()));
    }

    /// Adds rows in the tree over them, into the total.
    void add_rows(Range rows) {
        work(row_s_ * static_cast<double>(rows.size()));
        if (!options_.adds_numbers) return;
        const auto length = static_cast<std::size_t>(options_.row_length);
        std::vector<float> tree(memory_.row(rows.start), memory_.row(rows.stop));
        add_tree(tree.data(), static_cast<std::size_t>(rows.size()), length);
        std::copy_n(tree.data(), length, memory_.total());
    }

    /// Returns when all ranks of the node have called it: the leader hears of each, then tells each.
    void meet() const {
        if (!place_.leads()) {
            const int leader = place_.leader_of(place_.node());
            MPI_Send(nullptr, 0, MPI_BYTE, leader, meeting_tag, MPI_COMM_WORLD);
            MPI_Recv(nullptr, 0, MPI_BYTE, leader, meeting_tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            return;
        }
        for (int rank = place_.rank + 1; rank < place_.end_of(place_.node()); ++rank) {
            MPI_Recv(nullptr, 0, MPI_BYTE, rank, meeting_tag, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
        }
        for (int rank = place_.rank + 1; rank < place_.end_of(place_.node()); ++rank) {
            MPI_Send(nullptr, 0, MPI_BYTE, rank, meeting_tag, MPI_COMM_WORLD);
        }
    }

    /// At distance d, leaders whose nodes' numbers differ by d hold the halves of one subtree; both add them.
    void double_recursively() {
        add_rows(rows_of(place_.node()));
        float* sum = memory_.total();
        float* other = options_.adds_numbers ? received_.data() : sum;
        for (int distance = 1; distance < place_.num_nodes(); distance *= 2) {
            const int partner = place_.leader_of(place_.node() ^ distance);
            MPI_Sendrecv(sum, options_.row_length, MPI_FLOAT, partner, 0, other, options_.row_length, MPI_FLOAT,
                         partner, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
            for (std::size_t i = 0; i < received_.size(); ++i) sum[i] += other[i];
            work(row_s_);
        }
    }

    /// Each leader passes on the rows of one node after the other, then adds all rows.
    void gather_and_add() {
        const int num_nodes = place_.num_nodes(), node = place_.node();
        const int next = place_.leader_of((node + 1) % num_nodes);
        const int previous = place_.leader_of((node + num_nodes - 1) % num_nodes);
        MPI_Datatype row_type;
        MPI_Type_contiguous(options_.row_length, MPI_FLOAT, &row_type);
        MPI_Type_commit(&row_type);
        for (int hops = 1; hops < num_nodes; ++hops) {
            const Range sent = rows_of((node + num_nodes - hops + 1) % num_nodes);
            const Range taken = rows_of((node + num_nodes - hops) % num_nodes);
            pass_on(sent, next, taken, previous, row_type);
        }
        MPI_Type_free(&row_type);
        add_rows({0, options_.num_rows});
    }

    void pass_on(Range sent, int next, Range taken, int previous, MPI_Datatype row_type) {
        std::vector<MPI_Request> requests;
        for (std::int64_t v = taken.start; v < taken.stop; ++v) {
            MPI_Irecv(memory_.row(v), 1, row_type, previous, 0, MPI_COMM_WORLD, &requests.emplace_back());
        }
        for (std::int64_t v = sent.start; v < sent.stop; ++v) {
            MPI_Isend(memory_.row(v), 1, row_type, next, 0, MPI_COMM_WORLD, &requests.emplace_back());
        }
        MPI_Waitall(static_cast<int>(requests.size()), requests.data(), MPI_STATUSES_IGNORE);
    }

    const StepOptions& options_;
    Place place_;
    double row_s_;
    Range own_;
    std::int64_t most_rows_ = 1;
    NodeMemory memory_;
    std::vector<float> received_;  // [n]
};

/// Collective. Whether all ranks read the bits of the root's total.
bool is_same_everywhere(const StepOptions& options, const Step& step) {
    std::vector<float> of_root(step.total(), step.total() + options.row_length);
    const std::size_t num_bytes = of_root.size() * sizeof(float);
    MPI_Bcast(of_root.data(), options.row_length, MPI_FLOAT, 0, MPI_COMM_WORLD);
    int same = std::memcmp(of_root.data(), step.total(), num_bytes) == 0 ? 1 : 0;
    MPI_Allreduce(MPI_IN_PLACE, &same, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
    return same == 1;
}

StepOptions parse(int argc, char** argv) {
    StepOptions options;
    for (int i = 1; i + 1 < argc; i += 2) {
        const std::string flag = argv[i];
        const double value = std::atof(argv[i + 1]);
        if (flag == "--ranks-per-node") options.ranks_per_node = static_cast<int>(value);
        if (flag == "--rows") options.num_rows = static_cast<std::int64_t>(value);
        if (flag == "--row-length") options.row_length = static_cast<int>(value);
        if (flag == "--computing-s") options.computing_s = value;
        if (flag == "--row-s") options.row_s = value;
        if (flag == "--steps") options.num_steps = static_cast<int>(value);
        if (flag == "--adds-numbers") options.adds_numbers = value != 0;
    }
    return options;
}

void print_line(const StepOptions& options, const std::vector<double>& step_seconds, const Step& step, bool same) {
    std::printf("{\"step_us\": [");
    for (std::size_t k = 0; k < step_seconds.size(); ++k) std::printf("%s%.6f", k ? ", " : "", step_seconds[k] * 1e6);
    std::printf("], \"sum\": [");
    for (int i = 0; options.adds_numbers && i < options.row_length; ++i) {
        std::printf("%s%.9g", i ? ", " : "", static_cast<double>(step.total()[i]));
    }
    std::printf("], \"same_on_all_ranks\": %s}\n", same ? "true" : "false");
}

}  // namespace

int main(int argc, char** argv) {
    MPI_Init(&argc, &argv);
    const StepOptions options = parse(argc, argv);
    Place place{0, 1, options.ranks_per_node};
    MPI_Comm_rank(MPI_COMM_WORLD, &place.rank);
    MPI_Comm_size(MPI_COMM_WORLD, &place.world_size);
    Step step(options, place);
    std::vector<double> step_seconds;
    step.take();  // ranks begin at one time, and end a step at several: what follows goes on like this
    for (int k = 0; k < options.num_steps; ++k) {
        const double start = MPI_Wtime();
        step.take();
        step_seconds.push_back(MPI_Wtime() - start);
    }
    const bool same = !options.adds_numbers || is_same_everywhere(options, step);
    if (place.rank == 0) print_line(options, step_seconds, step, same);
    MPI_Finalize();
}
