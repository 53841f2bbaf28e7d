"""Tables of published runs, made by hand."""

from __future__ import annotations

HEAD = "model,strategy,p,b,b_means,unit,proj_comp,proj_comm,proj_total,meas_comp,meas_comm,meas_total\n"


ROW = "resnet50,d,16,64,per GPU,s/iter,0.1991,0.0142,0.2133,0.1896,0.0355,0.2251\n"


LINKS = (
    "source,library,collective,scope,p_range,alpha_s,beta_s_per_B\n"
    "tech report Fig 2,NCCL,d,inter,16-1024,3.03e-5,8e-11\n"
)


SINGLE = "model,batch_per_gpu,seconds_per_iteration\nresnet50,64,0.19965\n"
