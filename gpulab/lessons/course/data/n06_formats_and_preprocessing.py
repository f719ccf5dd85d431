"""Lesson 06: stages of a pipeline, what is done once, storage formats, shuffling, and where to augment."""

from __future__ import annotations

from gpulab.lessons.lesson import Choice, Lesson, LessonExperiment, Question, Target

_ONCE = (
    Question(
        key="stage",
        prompt="The photographs are on a local disk, in the page cache. Which stage takes most of the time: reading "
        "the file, decoding and resizing, augmenting (crop, flip, normalise), or collating the batch?",
        choices=(
            Choice(
                key="a",
                text="reading",
                feedback="Copying 100 KB from the page cache takes a small part of a millisecond.",
            ),
            Choice(key="b", text="decoding and resizing", feedback="It works on all pixels of the photograph."),
            Choice(
                key="c", text="augmenting", feedback="It works on 64 x 64 pixels, a 64th of what the decoder works on."
            ),
            Choice(key="d", text="collating", feedback="It copies 64 x 64 pixels once."),
        ),
        right="b",
        explanation="The cost follows the pixels: 512 x 512 are decoded and resized, 64 x 64 are augmented and "
        "collated. Decoding a JPEG also costs more per pixel than a copy.",
        hints=(
            "How many pixels does each stage touch?",
            "Compare 512 x 512 pixels with 64 x 64.",
            "Only decode_resized() works on the whole photograph.",
        ),
    ),
    Question(
        key="offline",
        prompt="How much of the loading can you do once, before training, and still show the model a new random "
        "view in every epoch?",
        choices=(
            Choice(key="a", text="decode", feedback="The resize gives the same result in every epoch, too."),
            Choice(key="b", text="decode and resize", feedback="Everything up to the first random choice."),
            Choice(
                key="c",
                text="decode, resize, crop and flip",
                feedback="Then the model sees one crop of each image, in every epoch the same.",
            ),
        ),
        right="b",
        explanation="Move everything up to the first random operation. A stored crop would be cheaper still, but it "
        "ends the augmentation.",
        hints=(
            "Which operations give the same result in every epoch?",
            "Look at the last column of the table.",
            "random_view() draws; decode_resized() does not.",
        ),
    ),
)
_FORMATS = (
    Question(
        key="formats",
        prompt="All formats are read from start to end, on a local disk and from the page cache. Is a format with "
        "fewer files faster?",
        choices=(
            Choice(
                key="a",
                text="yes: 8 opens are cheaper than 2,000",
                feedback="They are, but opens take little of the time here.",
            ),
            Choice(
                key="b",
                text="all are equally fast: the bytes are the same",
                feedback="Bytes from the page cache take about a millisecond; the rest is work of the reader.",
            ),
            Choice(
                key="c",
                text="it depends on how a sample is found and parsed",
                feedback="On this disk, that takes as much time as the opens, or more.",
            ),
        ),
        right="c",
        explanation="With tar and TFRecord, 8 opens replace 2,000. But for every sample, the tar reader parses a "
        "header of 512 bytes in Python, which takes as long as an open; the TFRecord reader unpacks one of 12 bytes.",
        hints=(
            "What does a reader do for each sample, besides reading its bytes?",
            "Compare the two formats with 8 opens.",
            "They have the same opens and similar bytes, but one takes several times as long.",
        ),
    ),
    Question(
        key="buffer",
        prompt="The samples are sorted by label: 200 of each of ten labels. How many of the 2,000 samples must a "
        "shuffle buffer have, so that a batch of 32 has at least eight labels on average?",
        choices=(
            Choice(
                key="a",
                text="about 100: three batches",
                below=150,
                feedback="Then a batch has three labels: those of its neighbourhood.",
            ),
            Choice(
                key="b",
                text="about 200: as many as there are of a label",
                below=400,
                feedback="The buffer has mostly two labels, and few samples of older ones: four in a batch.",
            ),
            Choice(key="c", text="800 or more", feedback="A batch has only labels that are in the buffer."),
        ),
        expected="c",
        explanation="A batch can only have labels that are in the buffer. With 500 samples, a batch has 6.4; with "
        "800, eight.",
        hints=(
            "Which labels are in the buffer at one time?",
            "Look at the line of labels in a batch, not at that of label runs.",
            "500 samples give 6.4 labels; a full shuffle gives 9.7.",
        ),
    ),
    Question(
        key="store",
        prompt="2,000 files of 1 KiB are read from a remote store, one after the other. An open and a read take 20 ms "
        "each, and the bandwidth is 100 MB/s. How long does an epoch take?",
        choices=(
            Choice(key="a", text="0.02 s", below=1, feedback="That is the time of the bytes: 2 MB at 100 MB/s."),
            Choice(
                key="b", text="2 s", below=10, feedback="Count the requests: two per file, each with its round trip."
            ),
            Choice(key="c", text="80 s", feedback="4,000 round trips of 20 ms."),
        ),
        expected="c",
        explanation="The bandwidth hardly matters: 4,000 requests x 20 ms are 80 s, and 2 MB take 0.02 s. Ten times "
        "the bandwidth would change nothing.",
        hints=(
            "How many requests does an epoch make?",
            "Multiply the requests by the latency, and divide the bytes by the bandwidth.",
            "4,000 x 0.020 s + 2 MB / 100 MB/s",
        ),
    ),
)
_PLACE = (
    Question(
        key="batched",
        prompt="Crop, flip, brightness and normalisation of 128 images, on one CPU core: image by image in a Python "
        "loop, or by operations on the whole batch. Which takes less CPU time?",
        choices=(
            Choice(
                key="a",
                text="the batch, at every image size",
                feedback="For large images, the time of the operators' calls does not matter any more.",
            ),
            Choice(
                key="b",
                text="the loop, at every image size",
                feedback="For small images, most of its time is calling operators.",
            ),
            Choice(
                key="c",
                text="the batch for small images, but not for large ones",
                feedback="For small images, operator calls cost most; for large ones, memory.",
            ),
        ),
        right="c",
        explanation="An operator call costs some microseconds, more than the arithmetic on 8 x 8 pixels. An image of "
        "128 x 128 stays in the cache from one operation to the next; a batch of 128 of them, 25 MB in float32, "
        "does not, and each operation writes a new tensor of that size.",
        hints=(
            "What does an operator cost besides its arithmetic?",
            "Follow both lines of the plot from left to right.",
            "At which size does the line of the batch lose its lead?",
        ),
    ),
    Question(
        key="place",
        prompt="Workers augment on the CPU. You move the augmentation to the GPU. For which model does the step become "
        "shorter?",
        choices=(
            Choice(
                key="a",
                text="for the small one, which waits for the workers",
                feedback="The GPU has time for it, and the workers were the bottleneck.",
            ),
            Choice(
                key="b",
                text="for the large one, whose GPU is busy all the time",
                feedback="It has no time to spare, and its workers were fast enough.",
            ),
            Choice(key="c", text="for both", feedback="The large one does not wait for its workers."),
            Choice(key="d", text="for neither", feedback="The small model waits for its workers."),
        ),
        right="a",
        explanation="The slower side sets the step. Moving work helps if it leaves the slower side. With the large "
        "model, it moves to the slower side, but crop and flip are so little work for a GPU that the step hardly "
        "grows.",
        hints=(
            "Which side does each model wait for?",
            "Compare the CPU time per batch, divided by the workers, with the GPU time of the step.",
            "max(cpu_ms / workers, gpu_ms), before and after the move.",
        ),
    ),
)
_FILES = (
    Question(
        key="broken",
        prompt="You want an index of good files without decoding them. Is `Image.open(file).verify()` enough for JPEG?",
        choices=(
            Choice(key="a", text="yes, it checks the whole file", feedback="Pillow's verify() does not read a JPEG."),
            Choice(
                key="b",
                text="no: it accepts truncated files",
                feedback="Only open() checks something, and that is the header.",
            ),
            Choice(key="c", text="no: it rejects good files", feedback="All good files pass; so do some damaged ones."),
        ),
        right="b",
        explanation="open() reads the header. verify() checks the checksums of a PNG, but JPEG has none, and Pillow's "
        "verify() does not read a JPEG at all. Only decoding finds a file whose end is missing.",
        hints=(
            "Does a JPEG file have checksums?",
            "Compare the failures with verify() and with the index.",
            "Half of the damaged files are truncated; these are the failures that remain.",
        ),
    ),
    Question(
        key="threads",
        prompt="Two threads load JPEG files with Pillow, without any other Python code. Can they decode at the same "
        "time?",
        choices=(
            Choice(
                key="a",
                text="no: only one thread at a time runs Python",
                feedback="Decoding is C code, which may release the lock.",
            ),
            Choice(key="b", text="yes: Pillow releases the GIL while it decodes", feedback="The count shows it."),
            Choice(key="c", text="only in processes", feedback="Processes can, too, but here they are not needed."),
        ),
        right="b",
        explanation="Pillow releases the GIL while its C code decodes or resizes, so two threads can use two cores. "
        "Only one thread at a time runs the Python code between these calls.",
        hints=(
            "Which language is the decoder written in?",
            "How often does the other thread get the GIL?",
            "Often while Pillow decodes, and never while Python computes.",
        ),
    ),
)
_TRANSFER = (
    Question(
        key="transfer",
        prompt="1.2 million JPEG files are in an object store. The loop waits for data for 60 % of each step. The "
        "workers' CPU cores are 15 % busy, and the network carries 4 % of what it could. What do you try first?",
        choices=(
            Choice(
                key="a",
                text="decode on the GPU with DALI",
                feedback="The CPU has time to decode: 85 % of it is idle.",
            ),
            Choice(
                key="b",
                text="copy uint8 instead of float32",
                feedback="That helps the copy to the GPU, but the loop waits for the loader.",
            ),
            Choice(
                key="c",
                text="pack the files into tar shards of some 100 MB, and read them in order",
                feedback="Shards of 1,000 files need a thousandth of the requests.",
            ),
            Choice(
                key="d",
                text="a network with ten times the bandwidth",
                feedback="4 % of the bandwidth is in use; the rest of the time, requests wait.",
            ),
        ),
        right="c",
        explanation="Neither the CPU nor the network is the limit, so the workers wait for round trips, one or more "
        "per file. More requests at a time (more workers or threads) help as well; start with that if you cannot "
        "rewrite the data.",
        hints=(
            "Which resource is the limit?",
            "CPU 15 %, network 4 %: what do the workers wait for?",
            "Count the requests per epoch, and multiply by the latency.",
        ),
    ),
)

LESSON = Lesson(
    id="06_formats_and_preprocessing",
    title="Formats and preprocessing",
    question="which work does every epoch repeat?",
    minutes=55,
    budget_s=90,
    level=2,
    without_gpu="all but copies and augmentation on the GPU runs live; these run on a virtual GPU",
    prerequisites=("05_data_loading",),
    outcomes=(
        "time the stages of a loader, and name the one that sets its rate",
        "move work out of the epoch without ending the augmentation",
        "choose a storage format by its opens, requests and parser, and say when fewer files do not help",
        "shuffle shards well with a buffer that fits into memory",
        "decide where to augment: on the CPU or on the GPU",
    ),
    symptom="Workers are busy, or wait for storage, and more of them do not help.",
    signature="The time of each stage; opens and requests per epoch; busy cores with a slow loader.",
    fix="Decode and resize once; store shards, mixed before they are written; read them in order through a shuffle "
    "buffer; copy uint8 and indices, and normalise on the device.",
    limits="The loop does not wait for data, or the slow stage is another one. On a warm local disk, fewer files need "
    "not be faster.",
    experiments=(
        LessonExperiment(number="06.1", description="the time of each stage of a pipeline"),
        LessonExperiment(number="06.2", description="decode and resize once, random views online"),
        LessonExperiment(number="06.3", description="2,000 samples as files, memory map, tar, TFRecord and Parquet"),
        LessonExperiment(number="06.4", description="full shuffle, shuffle buffer and order of shards"),
        LessonExperiment(number="06.5", description="a remote store: files, shards and the size of requests"),
        LessonExperiment(number="06.6", description="augmentation one by one and batched, on the CPU or the GPU"),
        LessonExperiment(number="06.7", description="uint8 or float32 to the device"),
        LessonExperiment(number="06.8", description="one-hot vectors or class indices"),
        LessonExperiment(number="06.9", description="broken files caught in every epoch, or indexed once"),
        LessonExperiment(number="06.10", description="JPEG by threads and processes, and decoded at a reduced size"),
    ),
    questions=(*_ONCE, *_FORMATS, *_PLACE, *_FILES, *_TRANSFER),
    targets=(
        Target(
            key="requests",
            unit="requests per epoch",
            value=40,
            hints=(
                "How many requests do 20 shards need if each is fetched once? And how many samples are in memory then?",
                "If the print says too few labels: shuffle the order of the shards before the buffer sees them.",
                "random.Random(epoch).sample(store.names, len(store.names)), then shuffle_buffer(samples, 400, epoch).",
            ),
        ),
    ),
)
