# The files and runs that the commands of mistakes.tsv use, made in the working folder; sourced before each command for its names.
S="--trainer.max_steps 2 --model.dim 16 --model.depth 1"
F="zoo fit vit-glyphs --data.size 400 --model.dim 16 --model.depth 1"
P="zoo fit lm-tiny --data TextFiles --data.tokenizer chars --model.dim 16 --model.depth 1"
L="runs/lm-tiny/data=textfiles,depth=1,dim=16,max_steps=5,path=book.txt,tokenizer=chars/s1"
[ -d "$L" ] || L=$(ls -d runs/lm-tiny/*book*/s1 2>/dev/null | head -n 1)
T=$(ls -d runs/translation-tiny/*max_steps=5*/s1 2>/dev/null | head -n 1)
V=$(ls -d runs/vit-glyphs/*max_steps=20,*/s1 2>/dev/null | head -n 1)
R=$(ls -d runs/vit-glyphs/*max_steps=600,*/s1 2>/dev/null | head -n 1)

prepare() {
    local i copy
    for i in $(seq 120); do echo "The quick brown fox jumps over the lazy dog, $i times; each time a little higher."; done > book.txt
    cp book.txt input_of_nobody.txt
    echo "twelve chars" > one.txt
    : > empty.txt
    mkdir -p emptydir photos/train/a photos/a photo/one onlyone mono/train/a corpus da db sa sb
    printf 'not an image' | tee photos/train/a/1.png photos/a/1.png > photos/train/a/2.png
    printf 'caf\xe9\n' > latin1.txt
    printf '\xff\xfet\0e\0x\0t\0' > utf16.txt
    head -c 3000 /dev/urandom | sed 's/^/\xe4/' > random.txt
    for i in $(seq 30); do echo "line $i of English" >> corpus/train.en; done
    for i in $(seq 29); do echo "ligne $i" >> corpus/train.fr; done
    cp book.txt da/text.txt
    tr a-z A-Z < book.txt > db/text.txt
    zoo cp vit-glyphs my.yaml > /dev/null
    printf 'model:\n\tdim: 3\n' > tabs.yaml
    printf 'model:\n  class_path: Classification\n  init_args:\n    dim: 16\n    depth: 1\n    depth: 2\n' > dup.yaml
    { cat my.yaml; echo "- list"; } > list.yaml
    printf -- '- a\n- b\n' > list2.yaml
    : > empty.yaml
    echo "just text" > text.yaml
    sed 's/^model:/modle:/' my.yaml > typo.yaml
    { sed '/^trainer:/,$d' my.yaml; echo "trainer: [1, 2]"; } > tl.yaml
    printf '\xf9\xfa\x00' > bin.yaml
    printf 'model: caf\xe9\n' > lat.yaml
    printf 'model:\n  class_path: Classification\n   init_args: {dim: 4}\n' > indent.yaml
    printf 'model:\n  class_path: Classification\n  init_args: {dim: [64]}\ndata: Glyphs\n' > dimlist.yaml
    printf 'model:\n  class_path: Classification\n  init_args: {dim: {a: 1}}\ndata: Glyphs\n' > dimmap.yaml
    printf 'model:\n  class_path: Classification\n  init_args: {dim: 16, depth: 1, position: null}\ndata: Glyphs\n' > null.yaml
    printf 'model: Classification\ndata: Glifs\n' > glifs.yaml
    printf 'model:\n  patch: 7\n  dim: 16\ndata: Glyphs\n' > nocp.yaml
    {
        $P --data.path book.txt --trainer.max_steps 5
        zoo fit translation-tiny --model.dim 16 --model.depth 1 --trainer.max_steps 5
        $F --trainer.max_steps 20
        $F --trainer.max_steps 600 & sleep "${PAUSE:-25}"; kill -TERM $!; wait $!
        . "$1"
        cp -r "$V" sa/s1; cp -r "$T" sb/s1
        zoo export "$T" exported_for_copies
        for i in 1 2 3 4 5 6 7; do copy=lm$i; cp -r "$L" $copy; done
        for i in 1 2 3 4 5; do cp -r exported_for_copies ex$i; done
        zoo export "$L" hf --format hf
        for i in 1 2 3 4 5 6 7; do cp -r hf g$i; done
    } > prepare.log 2>&1
    truncate -s 100 lm1/checkpoints/best.ckpt; rm lm1/checkpoints/last.ckpt lm1/checkpoints/previous.ckpt
    rm lm2/tokenizer.json
    rm -r lm3/checkpoints
    rm lm4/config.yaml
    : > lm5/checkpoints/best.ckpt
    printf 'model: [\n  }\n' > lm6/config.yaml
    printf 'x' | dd of=lm7/checkpoints/best.ckpt bs=1 seek=2000 conv=notrunc status=none
    truncate -s 3000 ex1/model.safetensors
    rm ex2/source-tokenizer.json
    echo '{}' > ex3/config.json
    : > ex4/target-tokenizer.json
    rm ex5/model.safetensors
    echo '{' > g1/config.json
    truncate -s 1000 g2/model.safetensors
    rm g3/model.safetensors
    sed -i 's/"model_type": *"[a-z0-9]*"/"model_type": "gpt9"/' g4/config.json
    echo '[]' > g5/config.json
    printf '\0\0\0\0\0\0\0\0' > g6/model.safetensors
}
